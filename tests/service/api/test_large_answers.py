"""The JSON of a large answer is made while its client reads it, and others are written one at a
time."""

import asyncio
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from types import SimpleNamespace

import numpy as np
import orjson
import pytest
from anyio import CapacityLimiter

from service.api.answering import respond
from service.api.answering.respond import Later, make_each, send
from service.api.reading.call import Call
from service.formats.json import JSON, numbers_in_arrays, to_json_line
from service.http.limits import Budget, Record
from service.http.middleware.door import Admission, Door, RequestLimits
from service.settings.settings import DEFAULT_BUNDLE
from tests.conftest import opened
from tests.documentation import events_of

INFER = {"name": "source", "shape": [2], "datatype": "BYTES", "data": ["heed", "a"]}
ANSWERS = [
    ("/v1/attention", {"source": ["heed", "a"], "attention": {"decimals": 3}}),
    ("/v1/decode", {"source": ["heed", "a"], "attention": {}, "top_log_probs": 5}),
    ("/v1/decode", {"source": ["heed", "1"], "attention": {}, "partial": True}),
    ("/v1/encode", {"source": ["heed", "a"]}),
    ("/v1/encode", {"source": ["heed", "a"], "encoding": "base64"}),
    ("/v1/embeddings", {"input": ["heed", "a"]}),
    ("/v2/models/g2p-en/infer", {"inputs": [INFER]}),
    ("/v2/models/g2p-en.attention/infer", {"inputs": [INFER]}),
]


def ids_of(answers):
    return [f"{path}-{i}" for i, (path, _) in enumerate(answers)]


@pytest.fixture(scope="module")
def client():
    with opened(DEFAULT_BUNDLE, protocols=["openai", "open-inference"]) as client:
        yield client


@pytest.fixture
def large(client, monkeypatch):
    """Let every answer with more than one number be large: (path, body, **headers) -> answer."""

    def ask(path, body, **headers):
        headers = {"X-Request-Id": "same", "Accept-Encoding": "identity", **headers}
        named = body if "infer" in path else {"model": "g2p-en", **body}
        return client.post(path, json=named, headers=headers)

    def ask_both(path, body, **headers):
        usual = ask(path, body, **headers)
        with monkeypatch.context() as patched:
            patched.setattr(respond, "LARGE_ANSWER", 1)
            return usual, ask(path, body, **headers)

    return ask_both


@pytest.mark.parametrize(("path", "body"), ANSWERS, ids=ids_of(ANSWERS))
def test_a_large_answer_has_the_same_bytes(large, path, body):
    usual, streamed = large(path, body)
    assert usual.status_code == streamed.status_code == 200, usual.text
    assert int(usual.headers["content-length"]) == len(usual.content)
    assert "content-length" not in streamed.headers
    assert streamed.content == usual.content


@pytest.mark.parametrize(
    "accept", ["application/npz", "application/safetensors", "text/html", "image/svg+xml"]
)
def test_large_files_are_whole_but_for_the_page(large, accept):
    """The length of an array file is known before it is written, and a picture is small."""
    usual, other = large("/v1/attention", {"source": "heed"}, Accept=accept)
    assert ("content-length" in other.headers) == (accept != "text/html")
    assert len(other.content) == len(usual.content)


def test_a_large_answer_is_compressed_as_others_are(large):
    body = {"source": ["heed"] * 20}
    usual, streamed = large("/v1/attention", body, **{"Accept-Encoding": "gzip"})
    assert streamed.headers["content-encoding"] == "gzip"
    assert streamed.content == usual.content


@pytest.mark.parametrize(
    ("path", "module", "name"),
    [
        ("decode", "decode.endpoint", "write_decoded"),
        ("attribution", "attribution", "make_pairs"),
        ("attribution", "attribution", "make_rows"),
        ("attribution", "attribution", "write_attribution"),
    ],
)
def test_one_thread_at_a_time_keeps_the_event_loop_waiting(client, monkeypatch, path, module, name):
    """However many requests come at once: all that is not left to the engine."""
    endpoint = import_module(f"service.api.endpoints.{module}")
    work, inside, most = getattr(endpoint, name), [], []

    def counted(*args):
        inside.append(threading.get_ident())
        most.append(len(inside))
        time.sleep(0.02)
        inside.pop()
        return work(*args)

    def ask(_):
        body = {"model": "g2p-en", "source": ["through"] * 10}
        return client.post(f"/v1/{path}", json=body).status_code

    monkeypatch.setattr(endpoint, name, counted)
    with ThreadPoolExecutor(6) as pool:
        assert [*pool.map(ask, range(6))] == [200] * 6
    assert most == [1] * 6


def test_the_end_of_a_stream_waits_for_no_picture(client):
    """Nor for the JSON of very large answers, which also take the threads for `cores`."""
    cores = client.app.state.service.cores
    takers = [f"picture {i}" for i in range(int(cores.total_tokens))]
    for each in takers:
        client.portal.call(cores.acquire_on_behalf_of_nowait, each)
    try:
        body = {"model": "g2p-en", "source": ["through"] * 40, "stream": True}
        answer = client.post("/v1/decode", json=body, headers={"X-Request-Timeout": "50"})
    finally:
        for each in takers:
            client.portal.call(cores.release_on_behalf_of, each)
    assert events_of(answer.text)[-1][0] == "done"


def test_a_piece_is_made_when_those_before_it_are_read():
    made = []

    def pieces():
        for i in range(4):
            made.append(i)
            yield bytes([i])

    async def read():
        reading = make_each(pieces(), CapacityLimiter(1))
        for count in range(4):
            assert made == [*range(count)]
            assert await anext(reading) == bytes([count])
        assert [each async for each in reading] == []

    asyncio.run(read())


def test_an_answer_that_is_closed_keeps_no_numbers():
    """Whether some of it was read or not: the tasks of a client that left live on for a while."""
    for read in (0, 1):
        weights = np.zeros((2000, 1000), np.float32)
        held = weakref.ref(weights)
        pieces = to_json_line({"data": weights})
        del weights
        for _ in range(read):
            next(pieces)
        assert held() is not None
        pieces.close()
        assert held() is None


def test_a_request_that_is_cancelled_while_a_piece_is_made_ends_as_others_do():
    """A server that closes cancels the requests that last too long; the thread goes on."""
    began, goes_on, ended = threading.Event(), threading.Event(), []
    answers = Budget(1)
    service = SimpleNamespace(settings=None, answers=answers, cores=CapacityLimiter(1))

    def pieces():
        began.set()
        goes_on.wait(60)
        yield b"[]"

    async def app(scope, receive, sending):
        call = Call(scope, receive)
        response = send(call, Later(pieces(), 1 << 20), JSON)
        call.at_end(lambda: ended.append(answers.held))
        await response(scope, receive, sending)

    async def run():
        door = Door(app, RequestLimits(Admission(1, 60), 1, Budget(1), answers, "/admin"))
        scope = {"type": "http", "method": "POST", "path": "/", "headers": []}
        scope |= {"app": SimpleNamespace(state=SimpleNamespace(service=service))}
        scope |= {"state": {"record": Record(), "request_id": ""}, "asgi": {"spec_version": "2.4"}}

        async def sending(_):
            pass

        task = asyncio.ensure_future(door(scope, asyncio.Event().wait, sending))
        await asyncio.to_thread(began.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        goes_on.set()

    asyncio.run(run())
    assert ended == [0]


@pytest.mark.parametrize(
    ("document", "count"),
    [
        ({"results": [{"data": np.zeros((3, 5), np.float32), "tokens": ["a"] * 9}] * 2}, 30),
        ({"results": [{"hidden": "x" * 40, "shape": [1, 2]}]}, 0),
        ({"results": [orjson.Fragment(b"{}"), {"data": np.zeros(3)}]}, 3),
        ([{"label": [[np.zeros(2)]]}, [np.zeros((2, 0))], 7], 2),
    ],
)
def test_numbers_in_arrays_are_counted(document, count):
    assert numbers_in_arrays(document) == count
