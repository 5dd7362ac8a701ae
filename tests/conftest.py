"""Bundles and servers shared by the tests. `tiny` is made by `make fixture`."""

import contextlib
import copy
import gc
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from click.testing import CliRunner
from fastapi import applications
from fastapi.testclient import TestClient
from httpx2._config import DEFAULT_TIMEOUT_CONFIG
from hypothesis import settings as hypothesis_settings

from service.app import create_app
from service.bundle.manifest import load_bundle
from service.command.__main__ import main as heed_command
from service.runtime.session import Session
from service.settings.settings import DEFAULT_BUNDLE, Precision, Provider, Settings
from tests.service.mutations.edit import edit_json, seal
from tests.service.processes import SERVING
from tests.waiting import wait_until

hypothesis_settings.register_profile("untimed", deadline=None)  # machines are slow at times
hypothesis_settings.load_profile("untimed")
KEY = "key-of-the-protocols"
TINY = Path(__file__).parent / "fixtures" / "tiny"


def pytest_configure():
    """Let the garbage collector run more rarely, as it does in the service's own processes. Let
    httpx2 wait for a minute, not 5 seconds: machines are slow at times."""
    gc.set_threshold(20_000)
    vars(DEFAULT_TIMEOUT_CONFIG).update(connect=60.0, read=60.0, write=60.0, pool=60.0)


def pytest_collection_finish():
    """Spare the garbage collector what was imported: an export takes a seventh less time."""
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _described_once():
    """Let FastAPI describe the same endpoints once. Most of an application's start goes there."""
    describe, known = applications.get_openapi, {}

    def describe_once(routes, **about):
        included = [
            (id(route.original_router), route.include_context.include_in_schema)
            for route in routes
            if hasattr(route, "original_router")
        ]
        key = repr((about, included))
        if key not in known:
            known[key] = describe(routes=routes, **about)
        return copy.deepcopy(known[key])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(applications, "get_openapi", describe_once)
        yield


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


def edit_tokenizer(bundle, file, change):
    """Change a tokenizer, and the size and hash that the manifest has for its file."""
    edit_json(file, change, bundle)
    seal(bundle)


CANDIDATE = {"layers": [1], "heads": [2, 0], "shift": 0, "measure": "weight", "agreement": 0.5}
ALIGNMENT = {**CANDIDATE, "sources": 40, "second": {**CANDIDATE, "layers": [0, 1]}}


@pytest.fixture(scope="session")
def aligned(tmp_path_factory):
    """The tiny bundle with an alignment, although its weights are random."""
    bundle = shutil.copytree(TINY, tmp_path_factory.mktemp("aligned") / "aligned")
    edit_manifest(bundle, name="aligned", alignment=ALIGNMENT)
    return bundle


SOURCE_WORDS = {"red": "مرحبا", "green": "بالعالم", "blue": "hello"}
TARGET_LETTERS = dict(zip("abcdefghi", "אבגדהוזחט", strict=True))
SOURCE_CODES = ("arb_Arab", "eng_Latn", "fra_Latn", "zho_Hans", "zho_Hant", "en_XX", "xx1")
TARGET_CODES = ("eng_Latn", "fra_Latn", "heb_Hebr")


def rename_tokens(bundle, file, names):
    def rename(tokenizer):
        vocabulary = tokenizer["model"]["vocab"].items()
        tokenizer["model"]["vocab"] = {names.get(token, token): i for token, i in vocabulary}

    edit_tokenizer(bundle, file, rename)


@pytest.fixture(scope="session")
def translator(tmp_path_factory):
    """The tiny bundle as a model that translates Arabic and English into Hebrew letters.

    It says nothing of its task, licence and authors.
    """
    bundle = shutil.copytree(TINY, tmp_path_factory.mktemp("languages") / "translator")
    rename_tokens(bundle, "source.tokenizer.json", SOURCE_WORDS)
    rename_tokens(bundle, "target.tokenizer.json", TARGET_LETTERS)

    def change(manifest):
        for key in ("task", "licence", "attribution"):
            del manifest[key]
        manifest["decoding"] |= {"beam_size": 2, "max_new_tokens": 9, "min_new_tokens": 5}

    edit_json("bundle.json", change, bundle)
    edit_manifest(
        bundle,
        name="translator",
        source_prefix=["source_language"],
        source_suffix=[2],
        decoder_start=[2, "target_language"],
        languages={
            "source": {code: [4 + i % 3] for i, code in enumerate(SOURCE_CODES)},
            "target": {code: [4 + i] for i, code in enumerate(TARGET_CODES)},
        },
    )
    return bundle


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


def sender(client, **usual):
    """POST a body to a client, with what is usual: (path, **body) -> status, document."""

    def send(path, **body):
        answer = client.post(path, json={**usual, **body})
        return answer.status_code, answer.json()

    return send


@pytest.fixture(scope="session")
def post(client):
    """POST to the default model: (path, **body) -> status, document."""
    return sender(client, model="g2p-en")


@pytest.fixture
def limit(client):
    """Change settings that the endpoints read, for one test."""
    settings = client.app.state.service.settings

    def change(**limits):
        client.app.state.service.settings = settings.model_copy(update=limits)

    yield change
    client.app.state.service.settings = settings


@contextlib.contextmanager
def serving(*flags):
    """The address of `python -m service` in a process of its own, as a user starts it."""
    command = [sys.executable, "-m", "service", "--port", "0", *flags]
    with tempfile.NamedTemporaryFile() as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.DEVNULL)
        said = Path(log.name)
        try:
            wait_until(lambda: SERVING.search(said.read_text()) or process.poll() is not None)
            assert process.poll() is None, "the service did not start"
            yield f"http://127.0.0.1:{SERVING.search(said.read_text())[1]}"
        finally:
            process.terminate()
            process.wait(60)


@pytest.fixture(scope="session")
def server():
    with serving() as address:
        yield address


@pytest.fixture(scope="session")
def fp32_server():
    with serving("--precision", "fp32") as address:
        yield address


@pytest.fixture(scope="session")
def protocol_server(translator):
    """A service that speaks other protocols, and takes KEY."""
    bundles = ["--bundles", f"{DEFAULT_BUNDLE},{translator}"]
    with serving(
        "--protocols", "openai,libretranslate,hugging-face", "--api-keys", KEY, *bundles
    ) as address:
        yield address


@pytest.fixture
def heed():
    """Run a command of `heed` in this process: (*arguments, stdin) -> its result."""

    def run(*arguments, stdin=""):
        return CliRunner().invoke(heed_command, [*map(str, arguments)], input=stdin)

    return run
