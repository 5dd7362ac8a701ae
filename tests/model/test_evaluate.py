import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.checkpoint import load_model
from model.data.tokenizers import Case, Unit, build_tokenizer
from model.evaluate import accuracy, edit_distance, error_rates, predict, score, stress_accuracy
from model.network.config import InputError
from model.training.loop import train
from tests.model.runs import OPTIONS, copying_run


def test_a_source_that_is_too_long_to_evaluate_is_named(tmp_path):
    run, pairs, _ = copying_run(tmp_path)
    train(run, pairs, pairs, OPTIONS)
    with pytest.raises(
        InputError, match="'abcabcabc' has 9 tokens, more than the max_source_length of 8"
    ):
        predict(load_model(run), ["a", "abcabcabc"], beam_size=1)


Words = st.lists(st.sampled_from("abc"), max_size=6)


@given(Words, Words, Words)
def test_edit_distance_is_a_metric(a, b, c):
    assert edit_distance(a, b) == edit_distance(b, a)
    assert (edit_distance(a, b) == 0) == (a == b)
    assert edit_distance(a, c) <= edit_distance(a, b) + edit_distance(b, c)
    assert edit_distance("kitten", "sitting") == 3


def test_error_rates_take_the_nearest_reference_with_or_without_stress():
    references = [("READ", "R EH1 D"), ("READ", "R IY1 D"), ("TWO", "T UW1")]
    predictions = {"READ": "R IY0 D", "TWO": "T W UW1"}
    stripped = error_rates(predictions, references, stress=False)
    assert (stripped.words, stripped.word, stripped.phoneme) == (2, 50.0, pytest.approx(20.0))
    stressed = error_rates(predictions, references, stress=True)
    assert (stressed.word, stressed.phoneme) == (100.0, pytest.approx(40.0))


def test_stress_accuracy_counts_the_vowels_that_are_right():
    references = [("READ", "R EH1 D"), ("READ", "R IY1 D"), ("RELAY", "R IY1 L EY0")]
    predictions = {"READ": "R IY0 D", "RELAY": "R AH0 L EY0"}
    assert (
        stress_accuracy(predictions, references) == 50
    )  # EY0 of IY0 and EY0; AH0 is not a right vowel
    assert stress_accuracy({"READ": "R IY1 D", "RELAY": "R IY1 L EY0"}, references) == 100
    missing = {"READ": "R EH1 D", "RELAY": "L EY0"}  # left out phonemes shift nothing
    assert stress_accuracy(missing, references) == 100
    assert math.isnan(stress_accuracy({"READ": "1 R", "RELAY": ""}, references))


def test_digits_that_do_not_mark_stress_stay():
    found = accuracy({"a": "1 2", "b": "3"}, [("a", "1 2"), ("b", "4")])
    assert (found.plain.word, found.plain.phoneme) == (50, pytest.approx(100 / 3))
    assert "with it" not in str(found)


@pytest.mark.parametrize(
    ("unit", "expected"),
    [
        # edits of "le mur", "mer" and "une île": 0, 1, 1 of 5 words, or 0, 2, 4 of 16 characters
        (Unit.words, "3 sources: 33.33 % exact; edit distance 40.00 % of the words"),
        (Unit.pieces, "3 sources: 33.33 % exact; edit distance 37.50 % of the characters"),
    ],
)
def test_texts_are_scored_by_exact_matches_and_edits_of_their_units(unit, expected):
    references = [("wall", "le mur"), ("sea", "la mer"), ("sea", "mer"), ("isle", "une île")]
    predictions = {"wall": "le  mur", "sea": "mer x", "isle": "une"}
    target = build_tokenizer((text for _, text in references), unit)
    assert str(score(predictions, references, target)) == expected


def test_characters_are_scored_in_the_case_that_the_model_learned():
    references = [("a", "Été")]
    for case, exact in ((Case.lower_case, 100), (Case.keep, 0)):
        target = build_tokenizer(["Été"], Unit.characters, case)
        assert score({"a": "été"}, references, target).exact == exact


def test_only_vocabularies_of_phonemes_are_scored_as_phonemes():
    for text, found in (("HH IY1 D", "PER"), ("HH IY1 D .", "exact"), ("HEED", "exact")):
        target = build_tokenizer([text], Unit.words)
        assert found in str(score({"heed": "IY1"}, [("heed", text)], target))
