"""heed --url: the answers of a service, also of one that is busy, starts again, or takes less."""

import json
import socket
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from service.client import Heed, Refusal
from tests.conftest import KEY, serving
from tests.service.processes import run_python

LINES = [f"line {i} {'x' * (i * 7 % 50)}" for i in range(600)]


class Service(ThreadingHTTPServer):
    """Answers texts in capitals, once it has met `failures`: statuses, or None to hang up."""

    def __init__(self, failures=(), most=1000):
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.failures, self.most, self.answered = [*failures], most, []


class Handler(BaseHTTPRequestHandler):
    protocol_version, wbufsize = "HTTP/1.1", -1  # one packet for each answer

    def do_GET(self):
        self.send(200, {"models": [{"name": "loud", "version": "1", "precision": "fp32"}]})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        failure = self.server.failures.pop(0) if self.server.failures else 200
        if failure is None:
            self.close_connection = True
        elif failure == 502:
            self.send(502, {}, "text/html")
        elif isinstance(failure, bytes):  # of a proxy
            self.send(200, failure, "text/html")
        elif len(body["source"]) > self.server.most:
            self.send_problem(413)
        elif failure != 200:
            self.send_problem(failure)
        else:
            self.server.answered += body["source"]
            results = [{"hypotheses": [{"text": each.upper()}]} for each in body["source"]]
            usage = {"source_tokens": len(results), "target_tokens": 1}
            self.send(200, {"model": "loud", "results": results, "usage": usage})

    def send_problem(self, status):
        problem = {"status": status, "code": "code", "detail": "not now", "errors": []}
        self.send(status, problem, "application/problem+json")

    def send(self, status, document, content_type="application/json"):
        content = document if isinstance(document, bytes) else json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Retry-After", "0")
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass


@contextmanager
def running(*arguments):
    with Service(*arguments) as service:
        threading.Thread(target=service.serve_forever).start()
        yield service
        service.shutdown()


@pytest.fixture
def files(tmp_path):
    (tmp_path / "in.txt").write_text("".join(f"{line}\n" for line in LINES))
    return ["--input", tmp_path / "in.txt", "--output", tmp_path / "out.txt"]


def read(files):
    return files[-1].read_text().splitlines()


CAPITALS = [line.upper() for line in LINES]


@pytest.mark.parametrize("failures", [[429, 503], [429] * 9, [None], [502]], ids=str)
def test_a_service_that_fails_for_a_while_loses_and_repeats_nothing(heed, files, failures):
    with running(failures) as service:
        done = heed("decode", *files, "--url", service.url)
    assert done.exit_code == 0, done.output
    assert read(files) == CAPITALS
    assert sorted(service.answered) == sorted(LINES)


@pytest.mark.parametrize("answer", [b"<html>", b'"later"', b"{}", b"[1]"])
def test_an_answer_of_something_else_ends_the_command_with_a_line(heed, files, answer, monkeypatch):
    monkeypatch.setattr("service.command.files.TOGETHER", 1)  # no other request is in progress
    with running([answer]) as service:
        done = heed("decode", *files, "--url", service.url)
    assert isinstance(done.exception, SystemExit)  # no other error
    assert done.exit_code == 1
    assert "does not answer as a service of Heed does" in done.stderr


@pytest.mark.parametrize("most", [1, 100])
def test_a_service_that_takes_fewer_texts_gets_fewer(heed, files, most):
    with running((), most) as service:
        assert heed("decode", *files, "--url", service.url).exit_code == 0
        document = json.loads(heed("decode", "a", "b", "c", "--url", service.url, "--json").stdout)
    assert read(files) == CAPITALS
    assert [each["hypotheses"][0]["text"] for each in document["results"]] == ["A", "B", "C"]
    assert document["usage"]["source_tokens"] == 3


def test_a_service_that_stays_away_ends_the_command_which_goes_on_later(heed, files, monkeypatch):
    monkeypatch.setattr("service.command.remote.RETRY_SECONDS", 0)
    monkeypatch.setattr("service.command.files.TOGETHER", 1)  # the first batch is answered first
    with running([200, *[503] * 1000]) as service:
        ended = heed("decode", *files, "--url", service.url)
        assert ended.exit_code == 1
        assert ended.stderr == "heed: not now\n"
        service.failures.clear()
        done = heed("decode", *files, "--url", service.url)
    assert "heed: going on after line 8 of " in done.stderr
    assert read(files) == CAPITALS
    assert sorted(service.answered) == sorted(LINES)


@pytest.mark.parametrize(
    "arguments",
    [
        ["decode", "heed", "knight"],
        ["decode", "read", "--beam-size", "4", "--num-hypotheses", "2", "--json"],
        ["decode", "ax", "--beam-size", "99"],
        ["decode", "ax", "é", "--partial"],
        ["decode", *("7" for _ in range(12))],
        ["decode", "a" * 99],
        ["attention", "photograph"],
        ["attention", "ax", "AE1 K S", "--heads=0,1", "--kinds=cross,encoder", "--json"],
        ["attention", "ax", "--layers", "3"],
        ["score", "read", "R EH1 D"],
    ],
    ids=" ".join,
)
def test_a_service_answers_as_a_local_engine(heed, server, arguments):
    found, expected = heed(*arguments, "--url", server), heed(*arguments)
    assert found.output == expected.output
    assert found.exit_code == expected.exit_code


@pytest.mark.parametrize("suffix", [".npz", ".svg"])
def test_a_service_writes_files_of_attention(heed, server, tmp_path, suffix):
    for name, place in (("local", []), ("remote", ["--url", server])):
        heed("attention", "ax", "-o", tmp_path / (name + suffix), *place)
    local, remote = (tmp_path / (name + suffix) for name in ("local", "remote"))
    assert remote.read_bytes() == local.read_bytes()


def test_bad_lines_are_skipped_by_choice(heed, server, tmp_path):
    (tmp_path / "w.txt").write_bytes(b"ax\n" * 300 + b"7\n\xff\nheed\n")
    files = ["--input", tmp_path / "w.txt", "--output", tmp_path / "w.tsv", "--url", server]
    stopped = heed("decode", *files)
    assert stopped.exit_code == 1
    assert "line 301 has '7' at offset 0" in stopped.stderr
    skipped = heed("decode", *files, "--partial")
    assert skipped.exit_code == 1
    assert "heed: line 301 has '7' at offset 0" in skipped.stderr
    assert "heed: line 302 has a byte that is not UTF-8" in skipped.stderr
    lines = (tmp_path / "w.tsv").read_bytes().splitlines()
    assert lines[299:] == [b"ax\tAE1 K S", b"7\t", b"\xff\t", b"heed\tHH IY1 D"]


BODY_LIMIT = 1 << 20  # bytes, of the service


def test_a_line_that_is_too_much_for_a_request_is_a_bad_line(heed, server, tmp_path):
    lines = ["heed"] * 5 + ["7", "a" * BODY_LIMIT, "ax", "7"]
    (tmp_path / "w.txt").write_text("\n".join(lines))
    files = ["--input", tmp_path / "w.txt", "--output", tmp_path / "w.txt.out", "--url", server]
    sixth = "heed: line 6 has '7' at offset 0"
    seventh = f"heed: line 7 is too much for one request: the body has more than {BODY_LIMIT} bytes"
    assert heed("decode", *files).stderr.startswith(sixth)
    done = heed("decode", *files, "--partial")
    assert done.exit_code == 1
    bad = [line for line in done.stderr.splitlines() if line.startswith("heed: line ")]
    assert [line.split()[2] for line in bad] == ["6", "7", "9"]
    assert bad[1].startswith(seventh)
    targets = (tmp_path / "w.txt.out").read_text().splitlines()
    assert targets == ["HH IY1 D"] * 5 + ["", "", "AE1 K S", ""]


@pytest.mark.parametrize("place", [0, 3, 7])
def test_lines_before_one_that_is_too_much_are_printed(heed, server, place):
    lines = ["ax"] * 8
    lines[place] = "a" * BODY_LIMIT
    done = heed("decode", "--url", server, stdin="\n".join(lines))
    assert (done.exit_code, done.stdout) == (1, "AE1 K S\n" * place)
    assert done.stderr.startswith(f"heed: line {place + 1} is too much for one request: ")
    pairs = "".join(f"{line}\tAE1\n" for line in lines)
    assert (
        f"heed: line {place + 1} is too much" in heed("score", "--url", server, stdin=pairs).stderr
    )


@pytest.mark.parametrize("texts", [["7"], ["ax", "7", "7"], ["7", "ax", "ax", "é", "7"]])
@pytest.mark.parametrize("as_json", [True, False])
def test_bad_texts_of_halves_are_named_by_their_places(heed, server, monkeypatch, texts, as_json):
    """As if a request could have only one text."""
    asked = ["decode", *texts, "--partial", *["--json"] * as_json]
    expected, post = heed(*asked), Heed.post

    def post_one(client, path, accept, **body):
        if len(body["source"]) > 1:
            raise Refusal({"status": 413, "code": "too_large", "detail": "too many", "errors": []})
        return post(client, path, accept, **body)

    monkeypatch.setattr(Heed, "post", post_one)
    found = heed(*asked, "--url", server)
    assert (found.exit_code, found.stderr) == (expected.exit_code, expected.stderr)
    if not as_json:
        assert found.stdout == expected.stdout
        return
    found, expected = (json.loads(each.stdout)["results"] for each in (found, expected))
    for result, right in zip(found, expected, strict=True):
        for name in ("detail", "errors", "status", "code"):
            assert result.get("problem", {}).get(name) == right.get("problem", {}).get(name)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            ["--beam-size=64", "--num-hypotheses=64"],
            "--max-new-tokens may take 524288 bytes for 64",
        ),
        (["--top-log-probs=20", "--json"], "--top-log-probs may take 192512 bytes for 1"),
    ],
)
def test_an_option_that_is_too_much_for_a_text_is_named(heed, monkeypatch, options, said):
    """With --partial the text is at fault: a shorter one may be answered."""
    monkeypatch.setenv("HEED_MAX_ANSWER_BYTES", "65536")
    refused = heed("decode", "heed", "ax", *options)
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert refused.stderr.startswith(f"heed: {said}")
    lines = heed("decode", "heed", "ax", *options, "--partial").stderr.splitlines()
    for line, place in zip(lines, (1, 2), strict=True):
        assert line.startswith(f"heed: source {place} is too much for one request: {said}")


def test_a_line_with_too_much_markup_is_a_bad_line(heed):
    options = ["decode", "--markup", "html"]
    lines = f"heed\n{'<b>' * 5002}\nax\n"
    said = "heed: line 2 has 5002 tags, and the limit is 5000: send less HTML at a time\n"
    refused = heed(*options, stdin=lines)
    assert (refused.exit_code, refused.stdout, refused.stderr) == (1, "HH IY1 D\n", said)
    gone_on = heed(*options, "--partial", stdin=lines)
    assert (gone_on.exit_code, gone_on.stdout) == (1, "HH IY1 D\n\nAE1 K S\n")
    assert gone_on.stderr == said


@pytest.mark.parametrize("texts", [["a"], ["b", "a"], ["a", "a", "b"]])
def test_json_names_a_text_that_is_too_much(heed, texts):
    class Small(Handler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if '"a"' in body.decode() or len(json.loads(body)["source"]) > 1:
                return self.send_problem(413)
            results = [{"hypotheses": [{"text": "B"}]}]
            usage = {"source_tokens": 1, "target_tokens": 1}
            return self.send(200, {"model": "loud", "results": results, "usage": usage})

    with running() as service:
        service.RequestHandlerClass = Small
        done = heed("decode", *texts, "--url", service.url, "--json", "--partial")
    answered = json.loads(done.stdout)
    assert done.exit_code == 1
    assert answered["usage"]["source_tokens"] == texts.count("b")
    assert answered["model"] == "loud"
    for place, (text, result) in enumerate(zip(texts, answered["results"], strict=True)):
        if text == "b":
            assert result == {"hypotheses": [{"text": "B"}]}
        else:
            assert result["problem"]["title"] == "Content Too Large"
            assert result["problem"]["instance"] == "/v1/decode"
            (error,) = result["problem"]["errors"]
            assert error["pointer"] == f"/source/{place}"
            assert result["problem"]["detail"] == (
                f"/source/{place} is too much for one request: not now"
            )
            assert f"source {place + 1} is too much for one request: not now" in done.stderr


def test_a_key_and_a_model(heed, protocol_server, monkeypatch):
    arguments = ["decode", "knight", "--url", protocol_server]
    assert "HEED_API_KEY" in heed(*arguments).stderr
    monkeypatch.setenv("HEED_API_KEY", KEY)
    assert "--model is required" in heed(*arguments).stderr
    assert heed(*arguments, "--model", "g2p-en").stdout == "N AY1 T\n"


@pytest.mark.parametrize("key", ["secret\n", "secret key", "secré", "sec\tret"])
def test_a_key_that_no_header_holds_is_refused_without_telling_it(heed, monkeypatch, key):
    monkeypatch.setenv("HEED_API_KEY", key)
    refused = heed("decode", "knight", "--url", "http://127.0.0.1:1")
    assert refused.exit_code == 1
    assert refused.output == (
        "heed: HEED_API_KEY: the API key has a character that a header cannot hold: give only ASCII"
        " characters, without spaces and line ends\n"
    )


@pytest.mark.parametrize("answer", [{}, [], {"models": 1}, "a page"])
def test_an_address_of_another_service_is_refused_at_once(heed, monkeypatch, answer):
    monkeypatch.setattr(Handler, "do_GET", lambda handler: handler.send(200, answer))
    with running() as service:
        said = heed("decode", "ax", "--url", service.url).stderr
    assert said.startswith(f"heed: {service.url} does not answer as a service of Heed does: ")


def test_an_address_with_a_path_that_the_service_lacks_is_refused_in_its_own_words(heed):
    with serving() as address:
        said = heed("decode", "heed", "--url", f"{address}/v1").stderr
    assert said == f"heed: {address}/v1 has a path that the service lacks: leave out /v1 and such\n"


@pytest.mark.parametrize("lacking", ["status", "code", "detail", "errors"])
def test_problems_of_another_service_are_refused_at_once(heed, monkeypatch, lacking):
    problem = {"status": 418, "code": "teapot", "detail": "I am one", "errors": []}
    del problem[lacking]
    answer = 418, problem, "application/problem+json"
    monkeypatch.setattr(Handler, "do_GET", lambda handler: handler.send(*answer))
    with running() as service:
        said = heed("decode", "ax", "--url", service.url).stderr
    assert said.startswith(f"heed: {service.url} does not answer as a service of Heed does: ")


def test_an_address_without_a_service_is_refused_at_once(heed):
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # and nobody listens
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        said = heed("decode", "ax", "--url", url).stderr
    assert said.startswith(f"heed: no service answers at {url} (")
    assert said.endswith("): start one by `heed serve`, or correct the address\n")


def test_a_service_is_asked_without_an_engine():
    code = """
import sys
from service.command.__main__ import main
main(["decode", "ax", "--url", sys.argv[1]], standalone_mode=False)
print({"fastapi", "onnxruntime", "starlette"} & {*sys.modules})
"""
    with running() as service:
        done = run_python("-c", code, service.url, check=True)
    assert done.stdout == "AX\nset()\n"
