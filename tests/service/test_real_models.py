"""Real models from outside are converted, and answer as their own code does."""

import warnings
from contextlib import nullcontext

import pytest
from typer.testing import CliRunner

from model.__main__ import app as commands
from tests.conftest import opened
from tests.documentation import assert_answered_as_shown, curl_calls
from tests.service.real_models import (
    LEMMAS,
    SECTION,
    accent,
    decode_all,
    lemmatize,
    read,
    write_accents,
    write_lemmas,
)
from tests.tracing import only

SENTENCES, WORDS = read("sentences.ru.txt"), read("words.tr.txt")
WRITERS = {"ruaccent": write_accents, "lemmaturk": write_lemmas}
TEXTS = {"ruaccent": SENTENCES, "lemmaturk": WORDS}
OWN = {"ruaccent": accent, "lemmaturk": lemmatize}
FEW = {"ruaccent": SENTENCES[::28], "lemmaturk": WORDS[::9]}


def convert(*arguments):
    return CliRunner().invoke(commands, ["convert", *map(str, arguments)])


EXACT = "lemmaturk --precision fp32"  # and only the graphs that decode, in a fifth of the time
DEFAULT = [pytest.param(each, marks=pytest.mark.long) for each in WRITERS]


@pytest.fixture(scope="module", params=[EXACT, *DEFAULT])
def converted(request, tmp_path_factory):
    """The name of a real model, and the bundle that these options make of its folder."""
    kind, *options = request.param.split()
    folder = tmp_path_factory.mktemp(kind)
    WRITERS[kind](folder / "checkpoint")
    with only("encoder", "step") if request.param == EXACT else nullcontext():
        done = convert(folder / "checkpoint", folder / kind, *options)
    assert done.exit_code == 0, done.output
    return kind, folder / kind


def decode(bundle, texts, precision):
    with opened(bundle, precision=precision) as client:
        return decode_all(client, texts)


def own(kind, texts):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch.nn.Transformer
        return OWN[kind](texts)


def test_texts_are_those_of_the_models_own_code(converted):
    kind, bundle = converted
    assert decode(bundle, FEW[kind], "fp32") == own(kind, FEW[kind])


@pytest.mark.parametrize(
    "converted", [pytest.param("ruaccent", marks=pytest.mark.long)], indirect=True
)
@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_letters_are_aligned_with_those_that_they_copy(converted, precision):
    """The model copies every letter, so that the right alignment is known."""
    _, bundle = converted
    right = letters = 0
    wanted = {"alignment": "model", "reduce_heads": "mean", "reduce_layers": "mean"}
    with opened(bundle, precision=precision) as client:
        answer = client.post("/v1/attention", json={"source": SENTENCES[::7], "attention": wanted})
    for result in answer.json()["results"]:
        source, target = result["source"], result["target"]
        if target.replace("'", "") != source:
            continue
        copied = [i for i, letter in enumerate(target) if letter != "'"]
        expected = {place: i for i, place in enumerate(copied)}  # both without special tokens
        start = result["attention"][0]["columns"].index(
            next(t for t in result["attention"][0]["columns"] if t["start"] == 0)
        )
        letters += len(source)
        for token, place in result["attention"][0]["alignment"]["pairs"]:
            right += expected.get(place) == token - start
    assert letters > 1500
    assert right >= 0.97 * letters


@pytest.mark.parametrize("converted", [EXACT, DEFAULT[1]], indirect=True)
def test_the_tutorial_shows_the_answer(converted):
    (call,) = curl_calls(SECTION)
    with opened(converted[1]) as client:
        assert_answered_as_shown(client, call)


def test_a_wrong_number_of_heads_is_found_by_expected_answers(tmp_path):
    """Every other proof holds: nothing in the tensors says how many heads they are of."""
    expected = tmp_path / "expected.tsv"
    words = WORDS[:24]
    lines = [
        f"{word}\t{lemma}\n" for word, lemma in zip(words, own("lemmaturk", words), strict=True)
    ]
    expected.write_text("".join(lines), encoding="utf-8")
    wrong = LEMMAS.replace("num_heads = 8", "num_heads = 4")
    folder, bundle = write_lemmas(tmp_path / "wrong", wrong), tmp_path / "bundle"
    done = convert(folder, bundle, "--expected", expected)
    assert done.exit_code == 3
    assert "answers come out" in done.stderr
    assert not bundle.exists()


@pytest.mark.parametrize("converted", DEFAULT, indirect=True)
def test_all_texts_agree(converted):
    kind, bundle = converted
    texts = TEXTS[kind]
    exact, rounded = (decode(bundle, texts, precision) for precision in ("fp32", "int8"))
    assert exact == own(kind, texts)
    same = sum(a == b for a, b in zip(exact, rounded, strict=True))
    assert same >= {"ruaccent": 330, "lemmaturk": 454}[kind]
    if kind == "ruaccent":
        assert count_copied(texts, rounded) >= count_copied(texts, exact) - 2


def count_copied(sentences, texts):
    """How many texts are their sentence, but for its stress marks."""
    without = (text.replace("'", "") for text in texts)
    return sum(a == b for a, b in zip(sentences, without, strict=True))
