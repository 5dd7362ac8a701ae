"""Sources for a session at fp32."""

from functools import partial

import numpy as np

from service.settings.settings import Precision, Provider, Settings

FP32 = Settings(precision=Precision.fp32, provider=Provider.cpu)
assert_close = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)


def sources(bundle, lengths, seed=0):
    random = np.random.default_rng(seed)
    return [random.integers(4, bundle.manifest.config.source_vocab_size, n) for n in lengths]
