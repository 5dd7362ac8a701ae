"""Server-sent events: they add up to the answer, and later ones never contradict earlier ones."""

import asyncio
import json
import os
import random
import signal

import httpx2
import pytest
from fastapi.testclient import TestClient
from hypothesis import given, settings
from hypothesis import strategies as st

from service.app import create_app
from service.errors import PassFailed
from service.settings import DEFAULT_BUNDLE, Provider, Settings

WORDS = ["transformer", "attention", "a", "through", "banana", "heed", "queue", "rhythm"]


def events_of(text):
    """Return [(name, data)] without comments."""
    found = []
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if line[:1] != ":")
        if fields:
            assert fields.keys() == {"event", "data"}
            found.append((fields["event"], json.loads(fields["data"])))
    return found


def streamed(url, **body):
    answer = httpx2.post(f"{url}/v1/decode", json={**body, "stream": True}, timeout=60)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = events_of(answer.text)
    assert [name for name, _ in events].count("done") == 1
    assert events[-1][0] == "done"
    return [event for _, event in events[:-1]], events[-1][1]


def check(events, done, options):
    results = done["results"]
    if options.get("beam_size", 1) > 1:
        stable = [""] * len(results)
        for event in events:
            i = event["result"]
            final = results[i]["hypotheses"][0]["text"]
            assert event["stable"].startswith(stable[i])
            assert final.startswith(event["stable"])
            assert event["tentative"].startswith(event["stable"])
            stable[i] = event["stable"]
        assert stable == [result["hypotheses"][0]["text"] for result in results]
        return
    for i, result in enumerate(results):
        for j, hypothesis in enumerate(result["hypotheses"]):
            mine = [e for e in events if (e["result"], e["hypothesis"]) == (i, j)]
            assert "".join(event["text"] for event in mine) == hypothesis["text"]
            assert [event["token"] for event in mine] == hypothesis["tokens"]
            assert [event["token_id"] for event in mine] == hypothesis["token_ids"]
            assert [event["log_prob"] for event in mine] == hypothesis["log_probs"]
            if "top_log_probs" in hypothesis:
                assert [event["top_log_probs"] for event in mine] == hypothesis["top_log_probs"]


OPTIONS = [
    {},
    {"beam_size": 4, "num_hypotheses": 2},
    {"beam_size": 3, "early_stopping": False, "length_penalty": 0.0},
    {"beam_size": 3, "early_stopping": False, "length_penalty": -1.0},
    {"beam_size": 4, "length_penalty": 2.0, "max_new_tokens": 4},
    {"temperature": 1.5, "seed": 3, "num_hypotheses": 3, "top_log_probs": 2},
    {"target_prefix": "N AH0", "max_new_tokens": 5},
    {"target_prefix": "N AH0", "beam_size": 3},
    {"attention": {}, "no_repeat_ngram_size": 1},
    {"stop": "N", "repetition_penalty": 1.2},
    {"allowed_targets": ["HH IY1 D", "HH EH1 D", "K W EY1"], "beam_size": 2},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: ",".join(options) or "greedy")
def test_events_add_up_to_the_answer_without_streaming(server, options):
    for source in (WORDS[0], WORDS):
        plain = httpx2.post(f"{server}/v1/decode", json={"source": source, **options}, timeout=60)
        events, done = streamed(server, source=source, **options)
        check(events, done, options)
        assert texts(done) == texts(plain.json())
        assert done.keys() == plain.json().keys()


def texts(answer):
    return [[h["text"] for h in result["hypotheses"]] for result in answer["results"]]


def test_stable_text_of_random_beams_is_never_taken_back(server):
    random_ = random.Random(0)
    for _ in range(40):
        options = {
            "beam_size": random_.randint(2, 6),
            "early_stopping": random_.random() < 0.5,
            "length_penalty": random_.choice([-0.5, 0.0, 0.6, 1.0, 2.0]),
            "max_new_tokens": random_.randint(1, 12),
        }
        source = ["".join(random_.choices("abcdefghilmnoprstu", k=9)) for _ in range(4)]
        check(*streamed(server, source=source, **options), options)


Ways = st.one_of(
    st.just({}),
    st.integers(2, 4).flatmap(
        lambda size: st.fixed_dictionaries(
            {"beam_size": st.just(size), "num_hypotheses": st.integers(1, size)},
            optional={
                "early_stopping": st.booleans(),
                "length_penalty": st.sampled_from([-0.5, 0.0, 1.0, 2.0]),
            },
        )
    ),
    st.fixed_dictionaries(
        {"temperature": st.floats(0.1, 3), "seed": st.integers(0, 99)},
        optional={
            "num_hypotheses": st.integers(1, 3),
            "top_k": st.integers(1, 60),
            "top_p": st.floats(0.1, 1),
        },
    ),
)
Limits = st.one_of(
    st.fixed_dictionaries(
        {},
        optional={
            "max_new_tokens": st.integers(6, 20),
            "min_new_tokens": st.integers(0, 6),
            "no_repeat_ngram_size": st.integers(0, 3),
            "repetition_penalty": st.sampled_from([0.8, 1.0, 1.5]),
            "suppress_tokens": st.lists(st.integers(4, 30), max_size=6),
            "stop": st.sampled_from(["N", "AH0 N", ["T", 5]]),
            "target_prefix": st.sampled_from(["N", "AH0 T", [5, 4]]),
            "top_log_probs": st.integers(0, 3),
        },
    ),
    st.just({"allowed_targets": ["N AH0", "T R EY1 N", "AH0"]}),
)


@settings(max_examples=60, deadline=None)
@given(way=Ways, limits=Limits, source=st.sampled_from(WORDS))
def test_any_options_hold_and_stream_the_same_answer(server, way, limits, source):
    options = {**way, **limits}
    plain = httpx2.post(f"{server}/v1/decode", json={"source": source, **options}, timeout=60)
    events, done = streamed(server, source=source, **options)
    check(events, done, options)
    assert texts(done) == texts(plain.json())
    prefix = {"N": "N", "AH0 T": "AH0 T"}.get(str(options.get("target_prefix")), "")
    for hypothesis in done["results"][0]["hypotheses"]:
        ids, size = hypothesis["token_ids"], options.get("no_repeat_ngram_size", 0)
        assert hypothesis["text"].startswith(prefix)
        assert not set(ids) & set(options.get("suppress_tokens", []))
        assert len(ids) <= options.get("max_new_tokens", 64)
        if hypothesis["finish_reason"] == "eos":
            assert len(ids) > options.get("min_new_tokens", 0)
        ngrams = [tuple(ids[i : i + size]) for i in range(len(ids) - size + 1)] if size else []
        assert len(set(ngrams)) == len(ngrams)
        if "allowed_targets" in options:
            assert hypothesis["text"] in options["allowed_targets"]


@pytest.mark.parametrize(
    ("body", "status"),
    [({"source": "naïve"}, 422), ({"source": "a", "seed": 1}, 422), ({"source": "a" * 99}, 413)],
)
def test_a_refusal_before_the_first_event_is_an_ordinary_problem(server, body, status):
    answer = httpx2.post(f"{server}/v1/decode", json={**body, "stream": True})
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"


LONG = {"source": ["transformer"] * 20, "beam_size": 4, "min_new_tokens": 60, "stream": True}


@pytest.fixture
def client():
    opened = Settings(bundles=[DEFAULT_BUNDLE], provider=Provider.cpu, self_check=False)
    with TestClient(create_app(opened), raise_server_exceptions=False) as client:
        yield client


def send_until(client, at_first_event, *, reads=True):
    """Run the application as a server would, and return all that it sent.

    `at_first_event` returns whether the client leaves then. A client that does not read blocks the
    sender after the first event.
    """
    sent, gone, began = [], asyncio.Event(), []
    bodies = iter([{"type": "http.request", "body": json.dumps(LONG).encode()}])

    async def receive():
        if message := next(bodies, None):
            return message
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)
        if message.get("body") and not began:
            began.append(True)
            if at_first_event():
                gone.set()
            if not reads:
                await asyncio.Event().wait()

    scope = {
        "type": "http",
        "asgi": {"spec_version": "2.3"},
        "method": "POST",
        "path": "/v1/decode",
        "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
    }
    client.portal.call(client.app, scope, receive, send)
    return b"".join(message.get("body", b"") for message in sent).decode()


def test_an_engine_that_dies_ends_the_stream_with_a_problem(client):
    engine = client.app.state.models["g2p-en"].engine
    text = send_until(client, lambda: os.kill(engine._process.pid, signal.SIGKILL))
    *_, (name, problem) = events_of(text)
    assert name == "error"
    assert (problem["status"], problem["code"]) == (503, "unavailable")
    assert client.get("/readyz").status_code == 503
    assert client.get("/livez").status_code == 503  # only a new start helps


def test_a_client_that_leaves_a_stream_frees_its_rows(client):
    engine = client.app.state.models["g2p-en"].engine
    text = send_until(client, lambda: True)
    assert "event: done" not in text
    assert_nothing_left(client, engine)


def assert_nothing_left(client, engine):
    async def rows_left():
        for _ in range(500):
            if not (await engine.status()).rows:
                return 0
            await asyncio.sleep(0.01)
        return (await engine.status()).rows

    assert client.portal.call(rows_left) == 0
    assert not engine._pending
    assert not engine._listeners


def test_a_client_that_does_not_read_is_cut_off_after_the_deadline(client, monkeypatch):
    monkeypatch.setattr("service.api.stream.GRACE", 0.1)
    client.app.state.settings = client.app.state.settings.model_copy(update={"timeout": 1.0})
    text = send_until(client, lambda: False, reads=False)
    assert text.count("event: ") == len(events_of(text))
    assert "event: done" not in text
    assert_nothing_left(client, client.app.state.models["g2p-en"].engine)


def test_when_one_source_fails_the_others_are_cancelled(client, monkeypatch):
    """Their rows too, although the answer ends with the first failure."""
    engine = client.app.state.models["g2p-en"].engine
    submit, submitted, failed = engine.submit, [], []

    def submit_and_fail(entries, on_progress):
        def fail_at_first_progress(place, progress):
            on_progress(place, progress)
            if not failed:
                failed.append(place)
                submitted[place].set_exception(PassFailed("broken"))

        submitted.extend(submit(entries, fail_at_first_progress))
        return submitted

    monkeypatch.setattr(engine, "submit", submit_and_fail)
    answer = client.post("/v1/decode", json=LONG)
    *_, (name, problem) = events_of(answer.text)
    assert (name, problem["code"]) == ("error", "pass_failed")
    assert all(future.done() for future in submitted)


async def stream_one(url, word, options, leaves):
    """Return all that came, or None if the client left in the middle of it."""
    body = {"source": word, "stream": True, **options}
    text = ""
    async with (
        httpx2.AsyncClient(timeout=60) as client,
        client.stream("POST", f"{url}/v1/decode", json=body) as answer,
    ):
        async for part in answer.aiter_text():
            text += part
            if leaves and text.count("event: ") >= 2:
                return None
    return text


def test_two_hundred_clients_of_whom_half_leave(server):
    random_ = random.Random(0)
    kinds = [{}, {"beam_size": 4}, {"temperature": 1.0, "seed": 5}]
    asked = [(random_.choice(WORDS), random_.choice(kinds), i % 2 == 1) for i in range(200)]

    async def run():
        return await asyncio.gather(*(stream_one(server, *one) for one in asked))

    plain = {}
    for (word, options, leaves), text in zip(asked, asyncio.run(run()), strict=True):
        if leaves:
            continue
        *events, (name, done) = events_of(text)
        assert name == "done"
        check([event for _, event in events], done, options)
        key = word, *options
        if key not in plain:
            body = {"source": word, **options}
            plain[key] = httpx2.post(f"{server}/v1/decode", json=body, timeout=60).json()
        assert texts(done) == texts(plain[key])
    assert httpx2.get(f"{server}/readyz").status_code == 200
