"""Bundles with languages, which all have the weights of `tiny`."""

import asyncio
import json
import shutil
import threading

import pytest

from service.serving.client import EngineClient
from tests.conftest import edit_manifest, opened

SOURCE = {"deu_Latn": [5, 6], "eng_Cyrl": [8], "eng_Latn": [4]}
TARGET = {"fra_Latn": [7], "fry_Latn": [8, 9]}
EXAMPLES = [{"source": "red", "source_language": "deu_Latn", "target_language": "fry_Latn"}]
SLOTS = {
    "source_prefix": ["source_language"],
    "source_suffix": [2],
    "decoder_start": [2, "target_language"],
    "languages": {"source": SOURCE, "target": TARGET},
    "examples": EXAMPLES,
}
MODELS = {
    "slots": SLOTS,  # as NLLB and mBART
    "ids": {"source_prefix": [5, 6], "source_suffix": [2], "decoder_start": [2, 8, 9]},
    "prefixed": {  # as OPUS-MT with several targets
        "source_prefix": ["target_language"],
        "source_suffix": [2],
        "languages": {"source": {}, "target": TARGET},
    },
    "fixed": SLOTS  # as a fine-tune of NLLB with a forced language
    | {
        "languages": {"source": SOURCE, "target": TARGET, "default_target": "fry_Latn"},
        "examples": [{"source": "red", "source_language": "deu_Latn"}],
    },
    "only": {  # as mBART-25, for one pair
        "source_suffix": [2, "source_language"],
        "decoder_start": ["target_language"],
        "languages": {"source": {"en": [4]}, "target": {"fr": [7]}},
    },
}


@pytest.fixture
def may_start(monkeypatch):
    """An event: engines that are to start wait until it is set."""
    event, start = threading.Event(), EngineClient.start

    async def wait_and_start(engine):
        assert await asyncio.to_thread(event.wait, 60)
        await start(engine)

    monkeypatch.setattr(EngineClient, "start", wait_and_start)
    return event


def copy_of(tiny, folder, name, **changes):
    bundle = shutil.copytree(tiny, folder / name)
    decoding = json.loads((tiny / "bundle.json").read_text())["decoding"]
    edit_manifest(bundle, name=name, decoding={**decoding, "max_new_tokens": 9}, **changes)
    return bundle


@pytest.fixture(scope="package")
def needs_none(tiny, tmp_path_factory):
    """A bundle that lists source languages without ids, as SMaLL-100, whose sources begin with the
    language of the target."""
    languages = {"source": {"en": [], "fr": []}, "target": {"en": [8], "fr": [7]}}
    changes = {"source_prefix": ["target_language"], "languages": languages}
    return copy_of(tiny, tmp_path_factory.mktemp("needs none"), "needs-none", **changes)


@pytest.fixture(scope="session")
def document(client):
    return client.get("/openapi.json").json()


@pytest.fixture(scope="package")
def ask(tiny, tmp_path_factory):
    """(model, path, **body) -> status and answer, of one of these models."""
    folder = tmp_path_factory.mktemp("languages")
    bundles = [copy_of(tiny, folder, name, **changes) for name, changes in MODELS.items()]
    with opened(tiny, *bundles) as client:

        def send(model, path, **body):
            if not body:
                return client.get(f"{path}/{model}").json()
            answer = client.post(path, json={"model": model, **body})
            return answer.status_code, answer.json()

        yield send
