"""README, docs/quick-start.md, docs/api.md, docs/attention.md and the introduction of /docs answer as shown."""

import re
import shutil
from pathlib import Path

import httpx2
import pytest

from service.api.answering.examples import INTRODUCTION
from service.settings.settings import DEFAULT_BUNDLE
from tests.conftest import edit_manifest, opened
from tests.documentation import assert_answered_as_shown, curl_calls

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
API = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
ATTENTION = (ROOT / "docs" / "attention.md").read_text(encoding="utf-8")
QUICK_START = (ROOT / "docs" / "quick-start.md").read_text(encoding="utf-8")
DEFAULT_MODEL = QUICK_START.split("## Your own model\n")[0]
TRANSLATOR = "opus-mt-en-fr"  # loaded, reloaded and unloaded in docs/api.md
API_CALLS = [*curl_calls(API)]
CHANGES = [call for call in API_CALLS if TRANSLATOR in call.path]
CALLS = [
    *curl_calls(README + DEFAULT_MODEL + INTRODUCTION + ATTENTION),
    *(call for call in API_CALLS if call not in CHANGES),
]


@pytest.mark.parametrize("call", CALLS, ids=lambda call: f"{call.path} {call.content}"[:60])
def test_every_curl_line_answers_as_shown(server, call):
    with httpx2.Client(base_url=server) as client:
        assert_answered_as_shown(client, call)


@pytest.fixture
def administered(tiny, tmp_path, monkeypatch):
    """The service with the default model, which may load another one."""
    edit_manifest(shutil.copytree(tiny, tmp_path / TRANSLATOR), name=TRANSLATOR)
    monkeypatch.setenv("HEED_ADMIN_KEY", "admin-0123456789abcdef")
    with opened(DEFAULT_BUNDLE, models=tmp_path) as client:
        yield client


def test_models_are_changed_as_shown(administered):
    for call in CHANGES:
        assert_answered_as_shown(administered, call)


def test_every_endpoint_has_a_heading_and_an_example(administered):
    paths = administered.get("/openapi.json").json()["paths"]
    endpoints = {f"{method.upper()} {path}" for path in paths for method in paths[path]}
    assert set(re.findall(r"^##+ ((?:GET|POST) .*)$", API, re.M)) == endpoints
    assert {f"{call.method} {call.path}" for call in API_CALLS} == {
        endpoint.replace("{name}", TRANSLATOR if endpoint.endswith("load") else "g2p-en")
        for endpoint in endpoints
    }


def test_the_readme_lists_every_endpoint(server):
    paths = set(httpx2.get(f"{server}/openapi.json").json()["paths"])
    assert set(re.findall(r"`(?:GET|POST) (/[^`]*)`", README)) == paths


def test_the_readme_stays_short():
    assert README.count("\n") <= 150
