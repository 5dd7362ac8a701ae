import pytest

from tests.tracing import traced_once


@pytest.fixture(scope="session", autouse=True)
def _traced_once():
    with traced_once():
        yield
