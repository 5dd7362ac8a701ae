"""The networks that the tests of export share, which are therefore traced once."""

from model.network.config import TransformerConfig
from tests.model.export.conftest import random_config

SIZES = {
    "source_vocab_size": 12,
    "target_vocab_size": 12,
    "d_model": 32,
    "d_ff": 24,
    "num_heads": 2,
    "num_encoder_layers": 1,
    "num_decoder_layers": 1,
}


def config_with(**changes):
    """The first of the networks of `exported`, or with changes a plainer one of about its size."""
    return TransformerConfig(**SIZES | changes) if changes else random_config(0, 12, 12)
