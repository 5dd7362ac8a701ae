"""Run the curl lines of README and docs/api.md and compare the answers; … matches anything."""

import re
import shlex
from pathlib import Path

import httpx2
import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
API = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```console\n(.*?)^```", README + API, re.MULTILINE | re.DOTALL)
CALLS = [
    call
    for block in BLOCKS
    for call in re.findall(r"^\$ (curl .*)\n((?:(?!\$ ).*\n)+)", block, re.M)
]
LINKS = re.findall(r"\]\(((?!http)[^)#]+)\)", README)


def compact(text):
    """Remove white space outside the strings of a JSON text."""
    return re.sub(r'("(?:[^"\\]|\\.)*")|\s+', lambda found: found[1] or "", text)


@pytest.mark.parametrize(("command", "answer"), CALLS, ids=lambda text: text[:60])
def test_every_curl_line_answers_as_shown(server, command, answer):
    words = shlex.split(command)
    url = next(word for word in words if word.startswith("localhost:8000"))
    url = url.replace("localhost:8000", server)
    if "-d" in words:
        body = words[words.index("-d") + 1].encode()
        headers = {"content-type": "application/json"}
        found = httpx2.post(url, content=body, headers=headers).text
    else:
        found = httpx2.get(url).text
    pattern = ".*".join(re.escape(part) for part in compact(answer).split("…"))
    assert re.fullmatch(pattern, compact(found)), found


def test_every_endpoint_is_shown(server):
    paths = set(httpx2.get(f"{server}/openapi.json").json()["paths"])
    called = {re.search(r"localhost:8000(\S*)", command)[1] for command, _ in CALLS}
    assert called == {path.replace("{name}", "g2p-en") for path in paths}
    assert set(re.findall(r"`(?:GET|POST) (/[^`]*)`", README)) == paths


@pytest.mark.parametrize("link", LINKS)
def test_links_lead_to_files(link):
    assert (ROOT / link).exists()


def test_the_readme_stays_short():
    assert README.count("\n") <= 200
