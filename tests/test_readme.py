"""README and docs/api.md show every endpoint, and their curl lines answer as shown."""

import re
from pathlib import Path

import httpx2
import pytest

from tests.documentation import assert_answered_as_shown, curl_calls

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
API = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
CALLS = [*curl_calls(README + API)]
LINKS = re.findall(r"\]\(((?!http)[^)#]+)\)", README)


@pytest.mark.parametrize("call", CALLS, ids=lambda call: f"{call.path} {call.content}"[:60])
def test_every_curl_line_answers_as_shown(server, call):
    with httpx2.Client(base_url=server) as client:
        assert_answered_as_shown(client, call)


def test_every_endpoint_is_shown(server):
    paths = set(httpx2.get(f"{server}/openapi.json").json()["paths"])
    called = {call.path for call in CALLS}
    assert called == {path.replace("{name}", "g2p-en") for path in paths}
    assert set(re.findall(r"`(?:GET|POST) (/[^`]*)`", README)) == paths


@pytest.mark.parametrize("link", LINKS)
def test_links_lead_to_files(link):
    assert (ROOT / link).exists()


def test_the_readme_stays_short():
    assert README.count("\n") <= 200
