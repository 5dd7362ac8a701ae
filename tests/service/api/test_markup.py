"""Documents with markup over HTTP: their texts are decoded as plain ones, and their tags stay."""

import re
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest

from service.api.answering.aligned import read_aligned, replace_tokens, words_for
from service.text.tokens import Token, Tokens
from tests.conftest import ALIGNMENT, TINY, opened, sender
from tests.service.markup.grammar import Grammar

COLOURS = ("red", "green", "blue", "one", "two", "three")
TAG = re.compile(r"<!--.*?-->|<[^>]*>")
UNKNOWN = 3
ALONE = [i for i in range(13) if i != UNKNOWN]  # suppressed: only the unknown token is left


@pytest.fixture(scope="module")
def post(aligned):
    with opened(aligned, TINY) as client:
        yield sender(client, model="aligned")


def decode(post, source, **options):
    """The texts of each result of a source, best first."""
    status, answer = post("/v1/decode", source=source, **options)
    assert status == 200, answer
    return [[each["text"] for each in result["hypotheses"]] for result in answer["results"]]


def text_of(document):
    return TAG.sub("", document)


@pytest.mark.parametrize("kind", ["html", "xml"])
def test_the_text_of_a_document_is_decoded_as_without_its_tags(post, kind):
    sources = [Grammar(kind, seed, COLOURS, signs=(" ", " ", "\n ")).text(6) for seed in range(60)]
    plain = [f"red {each} red" for each in sources if "@" not in each and len(each) < 200]
    options = {"beam_size": 2, "num_hypotheses": 2, "max_new_tokens": 8}
    documents = decode(post, plain, markup=kind, **options)
    expected = decode(post, [" ".join(text_of(each).split()) for each in plain], **options)
    for source, written, targets in zip(plain, documents, expected, strict=True):
        for document, target in zip(written, targets, strict=True):
            assert Counter(TAG.findall(document)) == Counter(TAG.findall(source))
            assert "".join(text_of(document).split()) == target


@pytest.mark.parametrize("source", ["<b>photo</b>graph", "pro<b>nun</b>ciation"])
def test_tags_of_a_target_prefix_stand_where_they_would_without_it(client, source):
    """If it is how the target begins anyway."""
    send = sender(client, model="g2p-en", source=source, markup="xml")
    (result,) = send("/v1/decode")[1]["results"]
    (whole,) = result["sentences"][0]["hypotheses"]
    for length in (1, 3, 5):
        _, answer = send("/v1/decode", target_prefix=whole["token_ids"][:length])
        (found,) = answer["results"][0]["hypotheses"]
        assert found["text"] == result["hypotheses"][0]["text"]


def test_each_text_of_a_document_is_a_sentence_of_its_result(post):
    source = '<p>red <b>green</b></p>\n<p title="blue">one <code>x</code></p>*'
    _, answer = post("/v1/decode", source=[source], markup="html", split="sentences")
    (result,) = answer["results"]
    texts = ["red green", "blue", "one"]
    assert [each["source"] for each in result["sentences"]] == texts
    first, blue, one = (decode(post, text)[0][0] for text in texts)
    (hypothesis,) = result["hypotheses"]
    expected = f'<p>{first}</p>\n<p title="{blue}">{one} <code>x</code></p>*'
    assert re.sub("</?b>", "", hypothesis["text"]) == expected
    assert result["source_tokens"] == sum(each["source_tokens"] for each in result["sentences"])


def test_a_document_without_text_stays_as_it_is(post):
    assert decode(post, ["<br>", "<p>*</p>", ""], markup="html") == [["<br>"], ["<p>*</p>"], [""]]


@pytest.mark.parametrize(
    ("body", "status", "part"),
    [
        (
            {"markup": "xml", "model": "tiny"},
            404,
            "model tiny has no alignment: no head of it was found that aligns",
        ),
        (
            {"replace_unknown": True, "model": "tiny"},
            404,
            "model tiny has no alignment: no head of it was found that aligns",
        ),
        ({"markup": "xml", "source": [[4, 5]]}, 422, "/markup needs texts, but source holds ids"),
        ({"markup": "xml", "source": ["red", "<b>"]}, 422, "/source/1 is not XML (mismatched tag"),
        ({"markup": "html", "source": "<b>red</b> b"}, 422, "/source (in the text 'red b', where"),
        ({"markup": "html", "stream": True}, 422, "/markup needs whole targets"),
        ({"replace_unknown": True, "stream": True}, 422, "/replace_unknown needs whole targets"),
        ({"markup": "html", "source_final": False}, 422, "/markup needs a whole source"),
        ({"markup": "html", "source": "<b>" * 5001}, 413, "/source has 5001 tags"),
        ({"markup": "xml", "source": f"<a>{'red ' * 99}</a>"}, 413, '"split": "sentences"'),
        ({"markup": "md"}, 422, "'html' or 'xml'"),
    ],
)
def test_what_cannot_be_done_is_refused_with_what_to_send(post, body, status, part):
    found, problem = post("/v1/decode", **{"source": "red", **body})
    assert (found, part in problem["detail"]) == (status, True), problem["detail"]


def test_faults_of_documents_are_theirs_in_a_partial_request(post):
    status, answer = post("/v1/decode", source=["<b>", "<b>red</b>"], markup="xml", partial=True)
    assert status == 200
    assert answer["results"][0]["problem"]["status"] == 422
    assert answer["results"][1]["hypotheses"][0]["text"] == f"<b>{decode(post, 'red')[0][0]}</b>"


def test_unknown_tokens_become_the_words_that_are_aligned_to_them(post):
    """The words come from the weights that the bundle names."""
    words = ["red", "green", "blue", "one"]
    options = {"suppress_tokens": ALONE, "max_new_tokens": 4, "source": " ".join(words)}
    where = {"layers": ALIGNMENT["layers"], "heads": ALIGNMENT["heads"]}
    attention = {**where, "reduce_heads": "mean", "reduce_layers": "mean"}
    status, answer = post("/v1/decode", replace_unknown=True, attention=attention, **options)
    assert status == 200
    (hypothesis,) = answer["results"][0]["hypotheses"]
    assert hypothesis["token_ids"] == [UNKNOWN] * 4
    weights = np.array(hypothesis["attention"][0]["data"])[:, : len(words)]
    best = weights.argmax(1).tolist()
    expected = [words[k] for i, k in enumerate(best) if i == 0 or best[i - 1] != k]
    assert hypothesis["text"] == "".join(expected)
    assert decode(post, **options) == [[""]]


@pytest.mark.parametrize("texts", [["red", "green"], ["red blue", "green one two"]])
@pytest.mark.parametrize(
    ("document", "options"),
    [
        ("{0}\n{1}", {"split": "sentences"}),
        ("<a><b>{0}</b>\n<b>{1}</b></a>", {"markup": "xml"}),
        ("<p>{0}<p>{1}", {"markup": "html"}),
    ],
)
def test_each_text_of_several_gets_its_own_words(post, texts, document, options):
    body = {"suppress_tokens": ALONE, "max_new_tokens": 2, "replace_unknown": True}
    ((written,),) = decode(post, document.format(*texts), **body, **options)
    assert TAG.sub(" ", written).split() == [decode(post, text, **body)[0][0] for text in texts]


def tokens(text, *spans):
    return Tokens.of(text, [Token(text[start:end], 0, start, end) for start, end in spans])


@pytest.mark.parametrize("by", [0, 2, 9])
def test_a_text_is_aligned_alike_wherever_it_stands(by):
    """What has letters, and so is a word, is seen in its own text."""
    source = tokens("- ab", (0, 1), (2, 4)).shift(by)
    target = tokens("x", (0, 1))
    model = SimpleNamespace(target=SimpleNamespace(decode=lambda _ids: target))
    entry = SimpleNamespace(prefix=[])
    hypotheses = [SimpleNamespace(token_ids=[0])]
    answer = SimpleNamespace(hypotheses=hypotheses, alignment=[np.array([[0.6, 0.4]])])
    ((text, pairs),) = read_aligned(model, entry, source, answer, replace_unknown=False)
    assert text == "x"
    assert pairs == [((by, by + 1), (0, 1)), ((by + 2, by + 4), (0, 1))]


@pytest.mark.parametrize(
    ("unknown", "pairs", "written"),
    [
        ({1}, [(0, 0), (1, 1)], "le Zweig a"),
        ({1}, [(0, 0), (2, 1)], "le Zweig a"),  # the word of which a token is aligned
        ({1}, [(1, 0), (2, 1)], "le eig a"),  # the target has more of the word
        ({1, 2}, [(1, 1), (2, 2)], "le Zweig"),  # twice the same word
        ({1}, [(3, 1)], "le , a"),
        ({1}, [], "le x a"),
    ],
)
def test_an_unknown_token_becomes_a_word_or_what_the_target_lacks_of_it(unknown, pairs, written):
    source = tokens("the 'Zweig',", (0, 3), (5, 7), (7, 10), (11, 12))
    target = tokens("le x a", (0, 2), (3, 4), (5, 6))
    found = words_for(unknown, source, target, np.array(pairs, np.int64).reshape(-1, 2))
    assert replace_tokens(target, found).text == written
