import re
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import normalizers

from model.data.tokenizers import SPECIALS, Case, Unit, build_tokenizer, case_of, normalize
from service.text.tokenizer import Tokenizer

# Latin, composed and decomposed marks, ligatures, scripts without spaces, spaces of several widths
TEXTS = st.text(
    "aAbéE\u0301ßﬁ½12９.,()’-▁ \u00a0\u3000\t日本カ゛ไทย", min_size=1, max_size=30
).filter(lambda text: unicodedata.normalize("NFKC", text).strip("▁ \t"))


def squeezed(text):
    return re.sub(r"[\s▁]+", " ", text).strip()


EXPECTED = {  # the normalised text, by Python's own tables
    Unit.pieces: lambda text: squeezed(unicodedata.normalize("NFKC", text)),
    Unit.words: lambda text: " ".join(text.split()),
    Unit.characters: lambda text: unicodedata.normalize("NFKC", text.replace("’", "'")).strip(),
}


@given(texts=st.lists(TEXTS, min_size=1, max_size=5), unit=st.sampled_from(Unit))
@example(texts=["a  b", " (a) 12.5 - A"], unit=Unit.pieces)
def test_decoding_restores_the_normalised_text_with_its_spaces(texts, unit):
    tokenizer = build_tokenizer(texts, unit, Case.keep)
    for text in texts:
        ids = tokenizer.encode(text).ids
        assert tokenizer.decode(ids) == EXPECTED[unit](text)
        assert min(ids) >= len(SPECIALS)


@given(texts=st.lists(TEXTS, min_size=1, max_size=5))
def test_the_service_restores_the_spaces_of_pieces_and_places_each_token(texts):
    library, forbidden = build_tokenizer(texts, Unit.pieces), {0: "padding", 3: "unknown"}
    served = Tokenizer(library, 100, forbidden, generated=True)  # any text, also of marks alone
    for text in texts:
        read = served.encode(text, "/source")
        assert served.decode(read.ids).text == EXPECTED[Unit.pieces](text)
        starts = [token.start for token in read.tokens]
        assert starts == sorted(starts)
        assert read.tokens[-1].end <= len(text)


def test_characters_are_put_in_lower_case_unless_the_case_is_kept():
    lower, kept = (
        build_tokenizer(["AbÉ"], Unit.characters, case) for case in (Case.lower_case, Case.keep)
    )
    assert [lower.decode(lower.encode("AbÉ").ids), case_of(lower)] == ["abé", Case.lower_case]
    assert [kept.decode(kept.encode("AbÉ").ids), case_of(kept)] == ["AbÉ", Case.keep]
    assert [normalize(lower, "É’"), normalize(kept, "É’")] == ["é'", "É'"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *((word, word) for word in ["GPU", "NASA", "HELLO", "GPUs", "OKs", "JFK's", "hello"]),
        *(
            (word, word.lower())
            for word in ["I", "A", "Is", "As", "Hello", "McDonald", "PhD", "iOS", "HELLo", "hELLO"]
        ),
        *((word, word.lower()) for word in ["'EM", "I'M", "DON'T", "O'BRIEN", "JFK'S", "Mr."]),
        ("JFK’s", "JFK's"),
        ("\uff27\uff30\uff35", "GPU"),  # full width
        (" The NASA report I saw ", "the NASA report i saw"),
        ("AB-Cd EF.", "AB-cd EF."),
        ("A" * 64, "A" * 64),
        ("A" * 16 + "b", "a" * 16 + "b"),
        ("b" + "A" * 16, "b" + "a" * 16),
    ],
)
def test_capitals_that_are_initialisms_are_kept(text, expected):
    tokenizer = build_tokenizer([text, "AB"], Unit.characters, Case.initialisms)
    assert normalize(tokenizer, text) == expected
    assert case_of(tokenizer) is Case.initialisms


WORDS = [f"{stem}{end}" for stem in ("walk", "talk", "jump") for end in ("", "s", "ed", "ing")]


def test_pieces_are_frequent_parts_of_words_but_no_digits_and_marks():
    texts = [f"{word} (1990), {word}." for word in WORDS]
    tokenizer = build_tokenizer(texts, Unit.pieces)
    assert tokenizer.encode("walking (19)").tokens == ["▁walking", "▁(", "1", "9", ")"]
    small = build_tokenizer(texts, Unit.pieces, vocabulary_size=40)
    assert small.get_vocab_size() == 40
    assert len(small.encode("walking").ids) > 1
    assert small.decode(small.encode("jumped, talking walked").ids) == "jumped, talking walked"


def test_training_pieces_twice_gives_the_same_vocabulary():
    texts = [f"{a}{b}" for a in WORDS for b in WORDS]  # many pairs are as frequent as others
    first, second = (build_tokenizer(texts, Unit.pieces, vocabulary_size=60) for _ in range(2))
    assert first.to_str() == second.to_str()


def test_a_character_that_no_piece_has_is_unknown():
    tokenizer = build_tokenizer(["ab ab"], Unit.pieces)
    assert tokenizer.encode("ab z").tokens[-1] == "<unk>"


def test_a_tokenizer_of_another_library_keeps_capitals():
    """A run may start from a converted model, whose normalizer may add U+2581."""
    tokenizer = build_tokenizer(["ab ab"], Unit.words)
    tokenizer.normalizer = normalizers.Prepend("\u2581")
    assert case_of(tokenizer) is Case.keep
