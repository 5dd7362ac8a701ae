import os
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, decoders, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Library
from tokenizers.models import BPE, WordLevel

from service.bundle.languages import Languages
from service.bundle.manifest import load_bundle
from service.errors import Invalid, StartupError, TooLarge
from service.text.opening import open_library, open_tokenizers
from service.text.tokenizer import SHORT, Tokenizer


@pytest.fixture(scope="module")
def words(g2p):
    return open_tokenizers(load_bundle(g2p))


def places_of(read):
    return [(token.text, token.start, token.end) for token in read.tokens]


@pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="needs Linux")
def test_a_batch_starts_no_threads_and_an_import_sets_nothing(tiny):
    code = f"""
import os
from pathlib import Path
from service.bundle.manifest import load_bundle
from service.text.opening import open_library
assert "TOKENIZERS_PARALLELISM" not in os.environ
library = open_library(load_bundle(Path({str(tiny)!r})), "source.tokenizer.json", 100, False)
before = os.listdir("/proc/self/task")
library.encode_batch(["red green blue"] * 64)
assert os.listdir("/proc/self/task") == before
"""
    without = {k: value for k, value in os.environ.items() if k != "TOKENIZERS_PARALLELISM"}
    subprocess.run([sys.executable, "-c", code], env=without, check=True)


@given(text=st.text(st.sampled_from("abcXYZ'’ "), min_size=1, max_size=40))
def test_every_letter_knows_its_place_in_the_text(words, text):
    source, _ = words
    if " " in text.strip() or not text.strip():
        with pytest.raises(Invalid):
            source.encode(text, "/source")
        return
    tokens = source.encode(text, "/source").tokens
    read = "".join(token.text for token in tokens)
    assert read.lower() == text.strip().lower().replace("’", "'")
    for token in tokens:
        assert text[token.start : token.end].replace("’", "'") in (token.text, token.text.upper())


@given(text=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12))
def test_any_text_is_read_or_refused_by_name(words, text):
    source, _ = words
    refused: list[Invalid] = []
    try:
        tokens = source.encode(text, "/source").tokens
    except Invalid as refusal:
        tokens = []
        refused.append(refusal)
    assert all(3 < token.id < 57 for token in tokens)
    assert [refusal.faults[0].pointer for refusal in refused] == ([] if tokens else ["/source"])


def test_letters_outside_the_alphabet_are_named_with_their_places(words):
    source, _ = words
    with pytest.raises(
        Invalid,
        match=r"has 'ï' at offset 2, '3' at offset 5, which the vocabulary lacks: send only a b c",
    ):
        source.encode("naïve3", "/source/7")
    with pytest.raises(Invalid, match="has 'e\u0301' at offset 3, which"):
        source.encode("cafe\u0301", "/source")


@pytest.mark.parametrize("apostrophe", "'\u2018\u2019\u02bc\u00b4`")
def test_whatever_was_typed_for_an_apostrophe_is_one(words, apostrophe):
    tokens = words[0].encode(f"don{apostrophe}t", "/source").tokens
    assert [(token.text, token.start) for token in tokens][3:] == [("'", 3), ("t", 4)]


def test_a_space_between_characters_has_a_place_of_its_own():
    library = build_spaced()
    target = Tokenizer(library, limit=9, forbidden={})
    ids = library.encode("ab cd").ids
    assert places_of(target.decode(ids))[1:4] == [("b", 1, 2), (" ", 2, 3), ("c", 3, 4)]


def test_a_ligature_belongs_to_the_last_of_its_letters(words):
    read = words[0].encode("ﬁn", "/source")
    assert places_of(read) == [("f", 0, 0), ("i", 0, 1), ("n", 1, 2)]


def test_a_letter_composed_of_three_characters_has_them_all(g2p, tmp_path):
    library = Library(WordLevel({letter: i for i, letter in enumerate("\u1ed9\u1ecdom?")}, "?"))
    library.normalizer = normalizers.NFC()
    library.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    library.save(str(tmp_path / "tokenizer.json"))
    bundle = replace(load_bundle(g2p), root=tmp_path)
    library = open_library(bundle, "tokenizer.json", 9, compose=True)
    read = Tokenizer(library, 9, {}).encode("mo\u0323\u0302m", "/")
    assert places_of(read) == [("m", 0, 1), ("\u1ed9", 1, 4), ("m", 4, 5)]


def test_a_name_is_shown_without_the_space_that_hides_it():
    library = Library(WordLevel({"</s> ": 0, "a": 1, " ": 2}))
    tokenizer = Tokenizer(library, 9, {})
    assert [tokenizer.name(i) for i in range(3)] == ["</s>", "a", " "]


def build_spaced():
    library = Library(WordLevel({letter: i for i, letter in enumerate("abcd ")}))
    library.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    library.decoder = decoders.Fuse()
    return library


def test_a_tokenizer_larger_than_the_model_is_refused(g2p):
    bundle = load_bundle(g2p)
    config = bundle.manifest.config.model_copy(update={"source_vocab_size": 56})
    smaller = replace(bundle, manifest=bundle.manifest.model_copy(update={"config": config}))
    with pytest.raises(
        StartupError, match="has the id 56, but the model has embeddings for only 56"
    ):
        open_tokenizers(smaller)


def test_a_special_token_typed_by_a_user_is_text(words):
    source, target = words
    with pytest.raises(Invalid, match="'<' at offset 0"):
        source.encode("<pad>", "/source")
    with pytest.raises(Invalid, match="'<eos>' at offset 0"):
        target.encode("<eos>", "/target")


def test_a_typed_language_that_stands_before_a_source_is_refused():
    library = Library(WordLevel({"a": 0, ">>fra<< ": 1, ">>": 2, "fra": 3, "<<": 4}, unk_token="a"))
    library.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Whitespace(), pre_tokenizers.Split("a", "isolated")]
    )
    library.add_special_tokens([">>fra<< "])
    tokenizer = Tokenizer(library, 9, [], languages={"fr": [1], "a word": [0]})
    said = "begins with '>>fra<<', which is text here: remove it, and give target_language 'fr'"
    for text in (">>fra<< a", " >>fra<<a"):
        with pytest.raises(Invalid, match=said):
            tokenizer.encode(text, "/source")
    assert 1 not in tokenizer.encode("a >>fra<<", "/source").ids
    assert tokenizer.encode("a", "/source").ids == [0]


@pytest.mark.parametrize(("place", "refused"), [("source_prefix", True), ("decoder_start", False)])
def test_only_languages_that_stand_in_sources_are_refused(g2p, place, refused):
    bundle = load_bundle(g2p)
    changes = {place: ["target_language"], "languages": Languages(source={}, target={"fr": [2]})}
    source, _ = open_tokenizers(
        replace(bundle, manifest=bundle.manifest.model_copy(update=changes))
    )
    said = "begins with '<eos>', which is text" if refused else "'<' at offset 0"
    with pytest.raises(Invalid, match=said):
        source.encode("<eos>heed", "/source")


def test_a_target_ends_with_eos_and_decodes_to_itself(words):
    _, target = words
    read = target.encode("HH IY1 D", "/target")
    assert places_of(read) == [("HH", 0, 2), ("IY1", 3, 6), ("D", 7, 8), ("<eos>", None, None)]
    again = target.decode(read.ids)
    assert (again.text, again.ids, places_of(again)) == (read.text, read.ids, places_of(read))


def test_text_of_characters_has_no_spaces(tiny):
    _, target = open_tokenizers(load_bundle(tiny))
    assert target.decode(target.encode("abc", "/target").ids).text == "abc"


@pytest.mark.parametrize(
    ("ids", "error", "pointer"),
    [
        ([5, 57], Invalid, "/source/1"),
        ([-1], Invalid, "/source/0"),
        ([0, 5], Invalid, "/source/0"),
        ([5] * 65, TooLarge, "/source"),
    ],
)
def test_ids_outside_the_vocabulary_or_the_limit_are_refused(words, ids, error, pointer):
    with pytest.raises(error) as refusal:
        words[0].read_ids(ids, "/source")
    assert refusal.value.faults[0].pointer == pointer


@pytest.mark.parametrize(
    ("forbidden", "allowed"),
    [
        ({}, "ids are 0 to 8"),
        ({8: "padding"}, "ids are 0 to 8, of which 8 (padding) is refused"),
        (
            {3: "unknown", 0: "padding"},
            "ids are 0 to 8, of which 0 (padding) and 3 (unknown) are refused",
        ),
    ],
)
def test_the_refusal_of_an_id_names_exactly_the_refused_ids(forbidden, allowed):
    words = Library(WordLevel({str(i): i for i in range(9)}, "0"))
    tokenizer = Tokenizer(words, 9, forbidden)
    for token_id in (-1, 9, *forbidden):
        with pytest.raises(Invalid) as refusal:
            tokenizer.read_ids([token_id], "/source")
        said = f"/source/0 is {token_id}, which is not allowed: {allowed}"
        assert refusal.value.detail == said
    for token_id in set(range(9)) - forbidden.keys():
        assert tokenizer.read_ids([token_id], "/source").ids == [token_id]


def test_ids_of_the_model_that_the_tokenizer_lacks_have_no_text():
    """The embedding may have more rows, whose ids the decoder can generate."""
    tokenizer = Tokenizer(Library(WordLevel({"a": 0, "b": 1}, "a")), 9, {}, size=4)
    read = tokenizer.read_ids([0, 3, 1, 2], "/target")
    assert [(each.id, each.text) for each in read.tokens] == [(0, "a"), (3, ""), (1, "b"), (2, "")]
    assert read.text == tokenizer.decode([0, 1]).text
    with pytest.raises(Invalid, match="is 4, which is not allowed: ids are 0 to 3"):
        tokenizer.read_ids([4], "/target")


@pytest.mark.parametrize("length", [65, 100_000])
def test_a_long_text_is_refused_with_the_limit(words, length):
    with pytest.raises(TooLarge, match="the limit is 64 tokens"):
        words[0].encode("a" * length, "/source")
    assert len(words[0].encode("a" * 64, "/source").ids) == 64


def byte_tokenizer():
    """A token a byte, as byte-level subwords fall back to."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    library = Library(BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    return Tokenizer(library, 1000, {})


@given(text=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12))
def test_no_character_is_broken_between_two_tokens(text):
    """Bytes come one by one, characters whole: each as soon as its last byte is there."""
    tokenizer = byte_tokenizer()
    ids, read = tokenizer.encode(text, "/").ids, tokenizer.reader()
    pieces = [read(token_id) for token_id in ids]
    if "\N{REPLACEMENT CHARACTER}" not in text:  # which also stands for what is not complete
        assert [piece for piece in pieces if piece] == list(text)
    assert "".join(pieces) + read.rest() == tokenizer.decode(ids).text == text
    assert tokenizer.decode(ids, goes_on=True).text == "".join(pieces)


def subwords():
    """Pieces that mark the beginning of a word, with a special token that has no text."""
    pieces = ["</s>", "▁", "▁a", "b", "▁,", "c", "▁▁"]
    library = Library(BPE({piece: i for i, piece in enumerate(pieces)}, []))
    library.add_special_tokens(pieces[:1])
    library.decoder = decoders.Metaspace()
    return Tokenizer(library, 1000, {}, generated=True)


def fallback():
    """Bytes as sentencepiece names them, besides letters and a special token."""
    pieces = ["</s>", "a", "b", *(f"<0x{byte:02X}>" for byte in range(256))]
    model = BPE({piece: i for i, piece in enumerate(pieces)}, [], byte_fallback=True)
    library = Library(model)
    library.add_special_tokens(pieces[:1])
    library.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return Tokenizer(library, 1000, {}, generated=True)


@pytest.mark.parametrize("cut", [b"", b"\xc3", b"\xe2\x82", b"\xff", b"\xff\xf0\x9f"])
@pytest.mark.parametrize("make", [byte_tokenizer, fallback])
def test_bytes_that_make_no_character_at_the_end_are_shown(make, cut):
    """Where bytes are tokens by name one for each; else as Python shows them."""
    tokenizer, content = make(), b"b\xc3\xa9" + cut
    ids = byte_ids(tokenizer, content)
    read, shown = tokenizer.decode(ids), content.decode(errors="replace")
    expected = "b\u00e9" + "\ufffd" * len(cut) if make is fallback else shown
    assert (read.text, read.tokens[-1].end) == (expected, len(expected))
    assert tokenizer.decode(ids, goes_on=True).text.rstrip("\ufffd") == "b\u00e9"
    if make is fallback:  # an end of the target has no place, and completes nothing
        assert places_of(tokenizer.decode([*ids, 0]))[:-1] == places_of(read)
        assert tokenizer.decode([*ids, 0]).text == read.text


def byte_ids(tokenizer, content):
    """Return the id of each byte, by its name of the form <0x41> or that of byte-level tokens."""
    seen = [*range(33, 127), *range(161, 173), *range(174, 256)]  # these bear their own names
    unseen = {byte: chr(256 + i) for i, byte in enumerate(sorted({*range(256)} - {*seen}))}
    by_name = {tokenizer.name(i): i for i in range(259)}
    names = ((f"<0x{byte:02X}>", unseen.get(byte, chr(byte))) for byte in content)
    return [by_name[next(name for name in each if name in by_name)] for each in names]


@pytest.mark.parametrize(("make", "count"), [(byte_tokenizer, 256), (subwords, 7), (fallback, 259)])
@given(data=st.data())
def test_the_text_of_ids_is_what_they_add_one_by_one(make, count, data):
    """Bytes that are not UTF-8, and spaces anywhere, too."""
    tokenizer = make()
    ids = data.draw(st.lists(st.integers(0, count - 1), max_size=12))
    read = tokenizer.decode(ids)
    reader = tokenizer.reader()
    assert read.text == "".join(map(reader, ids)) + reader.rest()
    assert read.ids == [token.id for token in read.tokens] == ids
    assert len(read) == len(ids)


@pytest.mark.parametrize("length", [1, SHORT - 1, SHORT, SHORT + 1, 4 * SHORT])
def test_a_text_has_the_same_tokens_however_it_is_passed_to_the_library(length):
    library = Library(WordLevel({letter: i for i, letter in enumerate("abc?")}, "?"))
    library.pre_tokenizer = pre_tokenizers.Split(Regex(r"."), "isolated")
    text = ("abc" * length)[:length]
    tokens = Tokenizer(library, 4 * SHORT + 1, {}).encode(text, "/source").tokens
    assert [(token.text, token.start, token.end) for token in tokens] == [
        (letter, i, i + 1) for i, letter in enumerate(text)
    ]
    with pytest.raises(Invalid, match="vocabulary lacks"):
        Tokenizer(library, 4 * SHORT + 1, {3: "unknown"}).encode(f"{text}x", "/source")
