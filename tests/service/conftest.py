"""Fixtures that several rooms of the service share."""

import pytest

from service.attention import Selection


@pytest.fixture(scope="session")
def every_weight():
    """Select every layer and head: (bundle, kinds) -> Selection."""

    def select(bundle, kinds=("encoder", "decoder", "cross")):
        config = bundle.manifest.config
        depth = {"encoder": config.num_encoder_layers}
        layers = {kind: [*range(depth.get(kind, config.num_decoder_layers))] for kind in kinds}
        return Selection(layers, [*range(config.num_heads)])

    return select
