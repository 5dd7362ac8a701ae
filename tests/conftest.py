"""Bundles and servers shared by the tests. `tiny` is made by `make fixture`."""

import contextlib
import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from hypothesis import settings as hypothesis_settings

from service.app import create_app
from service.bundle import load_bundle
from service.runtime.session import Session
from service.settings import DEFAULT_BUNDLE, Precision, Provider, Settings

hypothesis_settings.register_profile("untimed", deadline=None)  # machines are slow at times
hypothesis_settings.load_profile("untimed")
TINY = Path(__file__).parent / "fixtures" / "tiny"


@pytest.fixture(scope="session")
def tiny():
    return TINY


@pytest.fixture(scope="session")
def g2p():
    return DEFAULT_BUNDLE


@pytest.fixture(scope="session", params=[TINY, DEFAULT_BUNDLE], ids=["tiny", "g2p-en"])
def bundle(request):
    return load_bundle(request.param)


@pytest.fixture(scope="session")
def session(bundle):
    return Session(bundle, Settings(precision=Precision.fp32, provider=Provider.cpu))


def edit_manifest(bundle, **changes):
    manifest = json.loads((bundle / "bundle.json").read_text())
    (bundle / "bundle.json").write_text(json.dumps({**manifest, **changes}))


@contextlib.contextmanager
def opened(*bundles, **settings):
    """The service with these bundles, in this process."""
    chosen = Settings(bundles=list(bundles), provider=Provider.cpu, **settings)
    with TestClient(
        create_app(chosen), "http://localhost", raise_server_exceptions=False
    ) as client:
        yield client


@pytest.fixture(scope="session")
def client():
    with opened(DEFAULT_BUNDLE, TINY) as client:
        yield client


@pytest.fixture(scope="session")
def post(client):
    """POST to the default model: (path, **body) -> status, document."""

    def send(path, model="g2p-en", **body):
        answer = client.post(path, json={"model": model, **body})
        return answer.status_code, answer.json()

    return send


@pytest.fixture
def limit(client):
    """Change settings that the endpoints read, for one test."""
    settings = client.app.state.settings

    def change(**limits):
        client.app.state.settings = settings.model_copy(update=limits)

    yield change
    client.app.state.settings = settings


@contextlib.contextmanager
def serving(*flags):
    """The address of `python -m service` in a process of its own, as a user starts it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "service", "--port", str(port), *flags]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    for _ in range(300):
        with contextlib.suppress(urllib.error.URLError):
            urllib.request.urlopen(f"{address}/readyz").close()
            break
        assert process.poll() is None, "the service did not start"
        time.sleep(0.1)
    yield address
    process.terminate()
    process.wait(10)


@pytest.fixture(scope="session")
def server():
    with serving() as address:
        yield address


@pytest.fixture(scope="session")
def fp32_server():
    with serving("--precision", "fp32") as address:
        yield address
