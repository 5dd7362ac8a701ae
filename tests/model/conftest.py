import pytest

from tests.tracing import traced_once


@pytest.fixture(scope="session", autouse=True)
def _traced_once(tmp_path_factory, worker_id):
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "traced"  # one for all workers
    folder.mkdir(exist_ok=True)
    with traced_once(folder):
        yield
