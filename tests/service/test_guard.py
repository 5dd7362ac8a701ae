"""What the processes of the service do in addition: Python's audit events say so (PEP 578)."""

import ast
import os
import sys
from pathlib import Path

import httpx2
import pytest

from service.formats.writers import WRITERS
from tests.conftest import serving
from tests.documentation import ask, examples_of
from tests.service.processes import run_python

# Python imports this module at the start of every process, the engines' too.
GUARD = """
import os, sys

log = os.open(os.environ["GUARD_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
SEEN = {
    "socket.connect": lambda _, address: address,
    "socket.sendto": lambda _, address: address,
    "socket.getaddrinfo": lambda host, *_: host,
    "subprocess.Popen": lambda executable, *_: str(executable),
    "pickle.find_class": lambda module, name: f"{module}.{name}",
    "os.mkdir": lambda path, *_: str(path),
    "open": lambda path, _, flags: str(path) if flags & (os.O_WRONLY | os.O_RDWR) else None,
}

def note(event, values):
    if event in SEEN and (what := SEEN[event](*values)) is not None:
        os.write(log, f"{(event, what)!r}\\n".encode())

sys.addaudithook(note)
"""


@pytest.fixture
def guard(tmp_path, monkeypatch):
    """Return the events of all processes started from now on, as sets by their names."""
    (tmp_path / "sitecustomize.py").write_text(GUARD)
    log = tmp_path / "log"
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.getcwd()}")
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("GUARD_LOG", str(log))

    def read():
        events = {}
        for line in log.read_text().splitlines():
            event, what = ast.literal_eval(line)
            events.setdefault(event, set()).add(what)
        return events

    return read


UNPICKLED = {  # in addition to classes of the service
    "_codecs.encode",
    "collections.deque",
    "numpy._core.multiarray._reconstruct",
    "numpy._core.numeric._frombuffer",
    "numpy.dtype",
    "numpy.ndarray",
    "pathlib.PosixPath",
}


def test_serving_reaches_no_host_writes_no_file_and_unpickles_only_messages(guard):
    """With a request of every kind, and all formats of attention."""
    with serving() as address, httpx2.Client(base_url=address, timeout=60) as client:
        for path, name, body in examples_of(client.get("/openapi.json").json()):
            assert ask(client, path, body), name
        for accept in WRITERS:
            body = {"source": "heed", "attention": {}}
            answer = client.post("/v1/attention", json=body, headers={"Accept": accept})
            assert answer.status_code == 200
        for page in ("/", "/docs"):
            assert client.get(page).status_code == 200
    events = guard()
    assert events.get("socket.connect", set()) | events.get("socket.sendto", set()) == set()
    assert events.get("socket.getaddrinfo", set()) <= {"127.0.0.1"}
    assert events["subprocess.Popen"] == {sys.executable}
    assert events.get("open", set()) <= {os.devnull}
    assert "os.mkdir" not in events
    others = {each for each in events["pickle.find_class"] if not each.startswith("service.")}
    assert others <= UNPICKLED


def test_the_guard_sees_what_it_should(guard, tmp_path):
    """Else the test above could not fail."""
    script = """
import pathlib, pickle, socket
pathlib.Path("written").write_text("")
pickle.loads(pickle.dumps(pathlib.PurePath))
socket.create_connection(("127.0.0.1", 9), 1)
"""
    run_python("-c", script, cwd=tmp_path)
    events = guard()
    assert events["socket.connect"] == {("127.0.0.1", 9)}
    assert "pathlib.PurePath" in events["pickle.find_class"]
    assert {Path(path).name for path in events["open"]} == {"written"}
