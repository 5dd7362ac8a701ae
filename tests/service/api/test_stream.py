"""Server-sent events: they add up to the answer, and later ones never contradict earlier ones."""

import asyncio
import json
import random

import httpx2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.api.answering.stream import write_event
from service.formats.json import to_json
from tests.documentation import events_of

WORDS = ["transformer", "attention", "a", "through", "banana", "heed", "queue", "rhythm"]


def streamed(url, **body):
    answer = httpx2.post(f"{url}/v1/decode", json={**body, "stream": True}, timeout=60)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = events_of(answer.text)
    assert [name for name, _ in events].count("done") == 1
    assert events[-1][0] == "done"
    return [event for _, event in events[:-1]], events[-1][1]


BREAKS = "\u2028\u0085\u2029"


@pytest.mark.parametrize("beam_size", [1, 2])
def test_a_reader_that_breaks_lines_as_unicode_does_finds_whole_events(server, beam_size):
    """As str.splitlines, and with it the clients of Python."""
    body = {"source": f"heed{'read'.join(BREAKS)}deed", "split": "sentences", "stream": True}
    answer = httpx2.post(f"{server}/v1/decode", json={**body, "beam_size": beam_size})
    text = answer.content.decode()
    assert text.splitlines() == text[:-1].split("\n")
    said = json.dumps(events_of(text), ensure_ascii=False)
    assert [each for each in BREAKS if each not in said] == []


@pytest.mark.parametrize(
    "character", ["\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\u2029", "\r", "\n"]
)
def test_a_text_in_an_event_is_a_line_and_unchanged(character):
    text = f"Å{character}\u2030{character}ą"
    event = write_event("token", to_json({"text": text})).decode()
    assert len(event.splitlines()) == len(["event", "data", ""])
    assert events_of(event) == [["token", {"text": text}]]


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


@settings(max_examples=40)
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


@pytest.mark.parametrize("count", [60, pytest.param(200, marks=pytest.mark.long)])
def test_clients_of_whom_half_leave(server, count):
    random_ = random.Random(0)
    kinds = [{}, {"beam_size": 4}, {"temperature": 1.0, "seed": 5}]
    asked = [(random_.choice(WORDS), random_.choice(kinds), i % 2 == 1) for i in range(count)]

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


@pytest.mark.parametrize("stream", [False, True])
def test_sources_are_not_read_for_an_answer_that_could_not_wait(client, monkeypatch, stream):
    def read(*_):
        raise AssertionError("read")

    monkeypatch.setattr("service.http.limits.MOST_WAITING_ANSWERS", 0)
    monkeypatch.setattr("service.api.endpoints.decode.endpoint.read_sources", read)
    body = {"model": "g2p-en", "source": ["a"] * 20, "top_log_probs": 20, "stream": stream}
    answer = client.post("/v1/decode", json=body)
    assert (answer.status_code, answer.json()["code"]) == (429, "overloaded")
