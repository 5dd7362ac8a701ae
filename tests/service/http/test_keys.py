"""API keys: who may ask what, and that no message holds a key."""

import os

import pytest
from structlog.testing import capture_logs

from service.errors import StartupError
from service.http.middleware.keys import read_keys
from service.settings.settings import Settings
from tests.conftest import TINY, opened
from tests.service.processes import run_python

FIRST, SECOND, THIRD = (f"{name}-0123456789abcdef" for name in ("first", "second", "third"))
BODY = {"source": "red"}


@pytest.fixture(scope="module")
def locked(tmp_path_factory):
    """The service with two keys in a variable and one in a file."""
    file = tmp_path_factory.mktemp("secret") / "keys"
    file.write_text(f"\n{THIRD}\n")
    with opened(TINY, api_keys=f"{FIRST}, {SECOND}", api_keys_file=file) as client:
        yield client


def bearer(key, scheme="Bearer"):
    return {"Authorization": f"{scheme} {key}"}


@pytest.mark.parametrize("key", [FIRST, SECOND, THIRD])
@pytest.mark.parametrize("scheme", ["Bearer", "bearer"])
def test_every_key_opens_every_endpoint(locked, key, scheme):
    headers = bearer(key, scheme)
    assert locked.post("/v1/decode", json=BODY, headers=headers).status_code == 200
    assert locked.get("/v1/models", headers=headers).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        bearer(""),
        bearer("x"),
        bearer(FIRST[:-1]),
        bearer(FIRST + "f"),
        bearer(f"{FIRST},{SECOND}"),
        bearer("ñ" * 16),
        bearer(FIRST, "Basic"),
        {"Authorization": FIRST},
        {"X-Api-Key": FIRST},
    ],
)
def test_without_a_key_nothing_of_a_model_is_answered(locked, headers):
    raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    documented = locked.get("/openapi.json").json()["paths"]
    paths = [path for path, methods in documented.items() if "post" in methods]
    with capture_logs() as logged:
        answers = [locked.post(path, json=BODY, headers=raw) for path in paths]
        answers += [
            locked.get(path, headers=raw) for path in ("/v1/models", "/v1/models/tiny", "/v1/x")
        ]
        # LibreTranslate's, which is off: its clients send a key in the body.
        answers += [locked.post(path, headers=raw) for path in ("/translate", "/detect")]
        answers += [locked.delete("/", headers=raw), locked.head("/v1/models", headers=raw)]
    assert {answer.status_code for answer in answers} == {401}
    assert {answer.headers["www-authenticate"] for answer in answers} == {"Bearer"}
    problems = [answer.json() for answer in answers if answer.content]
    assert {problem["code"] for problem in problems} == {"unauthorized"}
    assert FIRST[:-1] not in "".join(answer.text for answer in answers) + str(logged)


@pytest.mark.parametrize(
    "path", ["/", "/livez", "/readyz", "/docs", "/openapi.json", "/web/page/app.js"]
)
def test_probes_and_pages_are_open(locked, path):
    assert locked.get(path).status_code == 200


def test_options_need_no_key(locked):
    """Browsers send none with the request by which they ask whether another site may ask."""
    assert locked.options("/v1/decode").headers["allow"] == "POST, OPTIONS"


def test_the_documentation_says_which_operations_need_a_key(locked, client):
    document = locked.get("/openapi.json").json()
    (name,) = document["components"]["securitySchemes"]
    assert document["components"]["securitySchemes"][name]["scheme"] == "bearer"
    secured = {
        path
        for path, methods in document["paths"].items()
        for operation in methods.values()
        if operation.get("security") == [{name: []}]
    }
    assert secured == document["paths"].keys() - {
        *("/livez", "/readyz", "/readyz/{name}", "/metrics")
    }
    assert "securitySchemes" not in client.get("/openapi.json").json()["components"]


def test_without_keys_all_is_open(monkeypatch):
    assert read_keys(Settings()) == []
    monkeypatch.setenv("HEED_API_KEY", "")  # as compose files leave it
    assert read_keys(Settings()) == []


def test_the_key_of_a_client_does_not_pass_for_one_of_the_service(monkeypatch):
    """Who mistypes HEED_API_KEYS would serve without keys."""
    monkeypatch.setenv("HEED_API_KEY", FIRST)
    with pytest.raises(StartupError, match="set HEED_API_KEYS to it") as refused:
        read_keys(Settings())
    assert FIRST not in str(refused.value)
    assert read_keys(Settings(api_keys=SECOND)) == [SECOND]


@pytest.mark.parametrize("text", ["", " , ", "short", f"{FIRST},short", f"a {FIRST}", "ñ" * 16])
@pytest.mark.parametrize("in_file", [False, True])
def test_keys_that_protect_nothing_stop_the_start(tmp_path, text, in_file):
    file = tmp_path / "keys"
    file.write_text(text.replace(",", "\n"))
    settings = Settings(api_keys_file=file) if in_file else Settings(api_keys=text)
    with pytest.raises(StartupError) as refused:
        read_keys(settings)
    assert str(file if in_file else "HEED_API_KEYS") in str(refused.value)
    assert FIRST not in str(refused.value)
    assert "short" not in str(refused.value)


def test_a_file_of_keys_that_is_missing_stops_the_start(tmp_path):
    with pytest.raises(StartupError, match="HEED_API_KEYS_FILE"):
        read_keys(Settings(api_keys_file=tmp_path / "none"))


PRINT = """
import sys
from service.__main__ import main

for arguments in (["--help"], ["--port", "x"], ["--nonsense", sys.argv[1]]):
    sys.argv[1:] = arguments
    try:
        main()
    except SystemExit as end:
        print(end.code, file=sys.stderr)
"""


def test_no_key_is_printed():
    done = run_python("-c", PRINT, FIRST, env={**os.environ, "HEED_API_KEYS": SECOND})
    assert "HEED_API_KEYS" in done.stdout
    assert done.stderr.count("heed: ") == 2, done.stderr
    assert SECOND not in done.stdout + done.stderr
    assert SECOND not in repr(Settings(api_keys=SECOND))
