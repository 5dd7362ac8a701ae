import pytest

from service.bundle.manifest import load_bundle


@pytest.fixture(scope="session")
def tiny_bundle(tiny):
    return load_bundle(tiny)


@pytest.fixture(scope="module")
def g2p_bundle(g2p):
    return load_bundle(g2p)
