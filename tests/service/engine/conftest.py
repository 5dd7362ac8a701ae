import pytest

from service.bundle import load_bundle


@pytest.fixture(scope="session")
def tiny_bundle(tiny):
    return load_bundle(tiny)
