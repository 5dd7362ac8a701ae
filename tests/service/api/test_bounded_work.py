"""What is read of a request that is refused is bounded, and so is what is kept of it."""

import sys
import weakref
from collections import Counter
from dataclasses import dataclass, field

import pytest

from service.api.answering.words import make_occluded
from service.api.reading.answer_size import check_rows
from service.api.reading.faults import Faults
from service.api.reading.selection import find_heads, resolve
from service.api.reading.texts import Text, TextField, split_texts, tokenize_fields
from service.bundle.manifest import load_bundle
from service.errors import Invalid, TooLarge
from service.settings.settings import DEFAULT_BUNDLE
from service.text import tokenizer
from service.text.opening import open_tokenizers
from service.text.tokenizer import advise
from tests.service.http.asgi import called_for

LIMIT = 256  # sentences
WORDS = "ab " * 1300  # the default model has no space: each part of it is refused
PARTS = "ab," * 1300  # nor a comma
FITTING = ("ab\n" * 200, "abcde\n" * 200)
UNEVEN = "".join("a" * (1 + i % 60) + " " for i in range(120))


@pytest.fixture(scope="module")
def own():
    """The tokenizer of the default model's sources, which reads 64 tokens."""
    return open_tokenizers(load_bundle(DEFAULT_BUNDLE))[0]


@dataclass
class Counting:
    """Counts the characters that a tokenizer reads."""

    inner: object
    lengths: Counter = field(default_factory=Counter)

    def has_text(self, text):
        return self.inner.has_text(text)

    def encode(self, text, pointer, placed=False):
        self.lengths[len(text)] += 1
        return self.inner.encode(text, pointer, placed=placed)

    @property
    def read(self):
        return sum(length * count for length, count in self.lengths.items())


def read_all(how, own, texts, *, partial=False):
    """Tokenize sources; return what counted the characters read for that, and the errors."""
    counting, faults = Counting(own), Faults(partial)
    source = TextField("/source", texts, counting)
    if how == "sentences":
        with faults.collect():
            split_texts(source, [*map(Text, texts)], how, LIMIT, faults)
    else:
        tokenize_fields([source], faults)
    return counting, faults


@pytest.mark.parametrize("text", [WORDS, PARTS, UNEVEN + "7", "a" * 4096, "7" * 300, "7", "*7"])
@pytest.mark.parametrize("how", ["sentences", "none"])
def test_after_ten_faults_nothing_more_is_read(own, how, text):
    (once, few), (often, many) = (read_all(how, own, [text] * count) for count in (12, 250))
    assert once.read == often.read
    assert error_of(few).detail == error_of(many).detail
    assert len(error_of(many).faults) == 10


def error_of(faults):
    with pytest.raises((Invalid, TooLarge)) as error:
        faults.raise_all()
    return error.value


@pytest.mark.parametrize("text", [WORDS, PARTS, UNEVEN + "7", *FITTING, UNEVEN, "a" * 4096])
@pytest.mark.parametrize("partial", [False, True])
def test_a_text_is_read_a_few_times_at_most(own, text, partial):
    """To try all of the rest for each part would read it some thirty times."""
    counting, _ = read_all("sentences", own, [text], partial=partial)
    assert counting.read <= 8 * len(text)


@pytest.mark.parametrize("text", [WORDS, PARTS, "7\n" * 200, "a" * 4096 + "\n7", "*7*"])
@pytest.mark.parametrize("how", ["sentences", "none"])
@pytest.mark.parametrize("partial", [False, True])
def test_collected_errors_keep_nothing_of_what_was_read(own, how, text, partial):
    """Their frames would hold thousands of tokens each."""
    counting, faults = read_all(how, own, [text] * 12, partial=partial)
    reader = weakref.ref(counting)
    del counting
    assert reader() is None  # it is in a frame of each error
    errors = [*faults.failed.values()] or [error_of(faults)]
    assert all(len(fault.detail) < 4000 for error in errors for fault in error.faults)


@pytest.mark.parametrize("count", [11, 200, 9999])
def test_allowed_targets_are_refused_after_ten(post, count):
    body = {"source": "a", "allowed_targets": ["QQ"] * count}
    status, problem = post("/v1/decode", **body)
    assert (status, len(problem["errors"])) == (422, 10)
    assert problem["detail"].startswith("the first 10 faults: /allowed_targets/0")


def test_ids_that_are_wrong_are_counted(post):
    status, problem = post("/v1/decode", source="a", suppress_tokens=[98] * 5000)
    assert (status, len(problem["errors"])) == (422, 10)
    assert problem["detail"].startswith("5000 faults, the first 10: /suppress_tokens/0 is 98")


ALL_HEADS = {"kind": "cross", "layer": 0, "heads": [0, 1, 2, 3]}
WRONG_HEADS = {**ALL_HEADS, "heads": [9] * 400}
LONG_SOURCES = ["a" * 60] * 256


@pytest.mark.parametrize(
    ("path", "body", "work", "status"),
    [
        ("/v1/decode", {"source": "a", "ablate": [WRONG_HEADS] * 100}, find_heads, 422),
        ("/v1/score", {"source": "a", "target": "D", "ablate": [ALL_HEADS] * 99}, find_heads, 200),
        ("/v1/attribution", {"source": LONG_SOURCES}, check_rows, 413),
        (
            "/v1/decode",
            {"source": ["heed"] * 32, "words": True, "source_share": True},
            make_occluded,
            200,
        ),
    ],
)
def test_work_that_grows_with_a_body_is_done_off_the_event_loop(client, path, body, work, status):
    small = {"source": "a", "words": True, "source_share": True, "ablate": [ALL_HEADS]}
    small = {name: small[name] for name in small if name in body}
    if "target" in body:
        small["target"] = body["target"]
    asking = [{"model": "g2p-en", **each} for each in (small, body)]
    (_, few), (found, many) = (
        client.portal.call(called_for, client.app, path, each) for each in asking
    )
    assert found == status
    assert work.__name__ in few
    assert work.__name__ not in many


def test_of_indices_out_of_range_ten_are_described():
    calls = []
    sys.setprofile(lambda frame, event, _: calls.append(event))
    try:
        with pytest.raises(Invalid) as refused:
            resolve([9] * 10_000, 4, "head", "/heads")
    finally:
        sys.setprofile(None)
    assert (len(refused.value.faults), refused.value.more) == (10, 9990)
    assert calls.count("call") < 1000


def test_a_vocabulary_is_listed_once_however_many_texts_it_lacks(monkeypatch):
    listed = []

    def count(*asked):
        listed.append(asked)
        return advise(*asked)

    monkeypatch.setattr(tokenizer, "advise", count)
    source, _ = open_tokenizers(load_bundle(DEFAULT_BUNDLE))
    for text in ("1", "2", "a3"):
        with pytest.raises(Invalid, match="send only a b c"):
            source.between([], []).encode(text, "/source")
    assert len(listed) == 1
