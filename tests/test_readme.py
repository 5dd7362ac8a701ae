"""The README is run: its requests are sent and its answers compared, … standing for anything."""

import re
import shlex
from pathlib import Path

import httpx2
import pytest

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
CALLS = re.findall(r"^\$ (curl .*)\n(\{.*)$", README, re.MULTILINE)


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
    pattern = ".*".join(re.escape(part) for part in answer.split("…"))
    assert re.fullmatch(pattern, found), found


def test_every_endpoint_is_shown(server):
    paths = httpx2.get(f"{server}/openapi.json").json()["paths"]
    shown = {re.search(r"localhost:8000(\S*)", command)[1] for command, _ in CALLS}
    assert shown == {path.replace("{name}", "g2p-en") for path in paths}


def test_it_stays_short():
    assert README.count("\n") <= 120
