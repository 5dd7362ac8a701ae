"""ByT5 reads and writes bytes as Hugging Face's tokenizer does, and is known by config.json."""

import random
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import ByT5Tokenizer

from model.importers.checkpoint import Checkpoint
from model.importers.convert import read_model
from model.importers.proofs.tokenizers import prove_ends, prove_pieces
from model.importers.vocabularies import read_vocabularies
from model.network.config import InputError
from tests.model.importers.checkpoints import change
from tests.model.importers.conftest import read, serve
from tests.model.importers.t5_checkpoints import write_byt5

TYPED = ("</s>", "<pad>", "<unk>", "<extra_id_3>", "<extra_id_124>")
ODD = ("e\u0301", "👩‍🚀", "🇫🇷", "\ufffd", "\x00", "\x7f", "\u2028", "\U0010ffff", "﷽", "한", "ǅ")
BYTES = range(3, 259)
INVALID = (  # overlong, half a surrogate pair, beyond the last plane, cut short
    *(b"\xc0\x80", b"\xc1\xbf", b"\xe0\x9f\xbf", b"\xf0\x8f\xbf\xbf", b"\xed\xa0\x80"),
    *(b"\xed\xbf\xbf", b"\xf4\x90\x80\x80", b"\xf5\x80\x80\x80", b"\xe2\x82", b"\xf0\x9f\x98"),
)


def characters(chance):
    """Return a character of any plane, or several that belong together."""
    plane = chance.choice((0x80, 0x800, 0x3000, 0x10000, 0x20000, 0x110000))
    sign = chr(chance.randrange(plane))
    return chance.choice((sign if unicodedata.category(sign) != "Cs" else "a", chance.choice(ODD)))


def texts():
    chance = random.Random(0)
    for _ in range(500):
        yield "".join(
            chance.choice(TYPED) if chance.random() < 0.1 else characters(chance)
            for _ in range(chance.randrange(20))
        )


@pytest.fixture(scope="module")
def theirs():
    return ByT5Tokenizer()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("byt5")
    write_byt5(folder)
    return folder


@pytest.fixture(scope="module")
def library(folder):
    return read_vocabularies(Checkpoint(folder)).source.tokenizer


@pytest.fixture(scope="module")
def served(folder):
    return serve(read_vocabularies(Checkpoint(folder)).source.converted)


def test_ids_and_texts_are_those_of_hugging_face(library, theirs):
    with_typed = 0
    for text in texts():
        typed = any(name in text for name in TYPED)
        with_typed += typed
        # typed, the name of a token is text
        expected = theirs(text, add_special_tokens=False, split_special_tokens=typed).input_ids
        assert library.encode(text, add_special_tokens=False).ids == expected
        assert library.decode(expected) == theirs.decode(expected) == text
    assert 100 < with_typed < 400


def test_bytes_that_are_not_utf8_are_left_out_as_hugging_face_leaves_them_out(library, theirs):
    chance, cut = random.Random(0), 0
    for _ in range(500):
        parts = [[3 + byte for byte in characters(chance).encode()] for _ in range(4)]
        parts += [[chance.randrange(384)] for _ in range(4)]
        parts.append([3 + byte for byte in chance.choice(INVALID)])
        chance.shuffle(parts)
        ids = [i for part in parts for i in part]
        expected = theirs.decode(ids, skip_special_tokens=True)
        assert library.decode(ids, skip_special_tokens=True) == expected
        cut += bytes(i - 3 for i in ids if i in BYTES) != expected.encode()
    assert cut > 250


def read_by(theirs, ids):
    """Return their text of ids. They leave out bytes at the end of it that are not a character."""
    letter = 3 + ord("a")
    return theirs.decode([*ids, letter], skip_special_tokens=True).removesuffix("a")


def test_a_streamed_text_has_whole_characters_and_is_the_whole_text(served, theirs):
    chance = random.Random(1)
    for _ in range(300):
        # a U+FFFD waits for what follows it: the library takes it for a part of a character
        ids = [3 + byte for byte in characters(chance).replace("\ufffd", "€").encode()]
        ids += [*chance.choices(range(384), k=6), *ids]
        ids += chance.choices(range(384), k=chance.randrange(3))
        reader = served.reader()
        pieces = list(map(reader, ids))
        whole = "".join(pieces) + reader.rest()
        assert whole == served.decode(ids).text == read_by(theirs, ids)
        first = next(i for i, piece in enumerate(pieces) if piece)
        assert len(pieces[first].encode()) == first + 1  # with its last byte


@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=20))
def test_every_byte_of_a_character_has_its_place(library, served, text):
    text = f"b{text}b"
    expected = [i for i, sign in enumerate(text) for _ in sign.encode()]
    found = library.encode(text, add_special_tokens=False).offsets
    assert found == [(i, i + 1) for i in expected]
    tokens = served.encode(text, "/").tokens
    places = [(token.start, token.end) for token in tokens]
    last = [k for k, i in enumerate(expected) if [*expected, None][k + 1] != i]
    assert [places[k] for k in last] == [(i, i + 1) for i in range(len(text))]
    assert all(start == end for k, (start, end) in enumerate(places) if k not in last)


@pytest.mark.parametrize("files", ["config.json", "all", "more"])
def test_the_ids_around_a_text_and_added_tokens_are_proved(tmp_path, files):
    """With no file but config.json, with those that Hugging Face writes, and with more tokens."""
    write_byt5(tmp_path, extra_rows=16)
    theirs = ByT5Tokenizer()
    if files == "more":
        theirs.add_tokens(["<sep>", "ŋ", "grapheme", "né e"])
    if files != "config.json":
        theirs.save_pretrained(tmp_path)
    checkpoint, vocabularies, usage = read(tmp_path)
    tokenizer = serve(vocabularies.source.converted)
    assert all(proof.holds for proof in prove_pieces(vocabularies))
    assert prove_ends(checkpoint, vocabularies, usage).holds
    for text in ("grapheme <sep> ŋa", "né eé<sep><sep>é"):
        ids = tokenizer.encode(text, "/").ids
        assert [*usage.source_prefix, *ids, *usage.source_suffix] == theirs(text).input_ids
        assert tokenizer.decode(ids).text == text
    assert checkpoint.config["vocab_size"] == 400
    assert read_model(checkpoint).config.max_source_length == 1024


def test_the_proof_finds_another_id(folder):
    vocabularies = read_vocabularies(Checkpoint(folder))
    vocabularies.source.tokenizer.add_tokens(["the"])
    (proof, _) = prove_pieces(vocabularies)
    assert proof.holds is False
    assert proof.reference == "UTF-8"


def test_an_added_token_that_stands_for_a_byte_is_refused(tmp_path):
    write_byt5(tmp_path, extra_rows=16)
    theirs = ByT5Tokenizer()
    theirs.add_tokens(["ð"])
    theirs.save_pretrained(tmp_path)
    with pytest.raises(
        InputError, match="list the token 'ð' or its id 243, which stands for the byte 0xF0"
    ):
        read_vocabularies(Checkpoint(tmp_path))


@pytest.mark.parametrize(
    ("named", "advice"),
    [
        (None, 'if it is a ByT5, write "tokenizer_class": "ByT5Tokenizer" into its config.json'),
        ("MyT5Tokenizer", "its tokenizer_class is MyT5Tokenizer"),  # it reads other bytes
    ],
)
def test_a_folder_without_files_of_a_tokenizer_is_told_why(tmp_path, named, advice):
    write_byt5(tmp_path)
    change(tmp_path, "config.json", tokenizer_class=named)
    with pytest.raises(InputError, match=f"has no spiece.model: .*; {advice}"):
        read_vocabularies(Checkpoint(tmp_path))


@pytest.mark.parametrize(
    ("there", "missing"), [("vocab.json", "merges.txt"), ("merges.txt", "vocab.json")]
)
def test_a_folder_with_half_a_tokenizer_of_codet5_is_told_the_other_half(tmp_path, there, missing):
    write_byt5(tmp_path)
    change(tmp_path, "config.json", tokenizer_class="RobertaTokenizer")
    (tmp_path / there).write_text("{}")
    with pytest.raises(InputError, match=f"has no {missing}: .* has vocab.json, merges.txt"):
        read_vocabularies(Checkpoint(tmp_path))
