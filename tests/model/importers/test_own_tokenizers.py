"""Tokenizers of a model of one's own: files, word lists, vocabularies of letters."""

import json

import pytest
import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE, WordLevel, WordPiece
from tokenizers.processors import TemplateProcessing

from model.importers.checkpoint import Checkpoint
from model.importers.networks.plain import read_plain
from model.importers.tokenizers.own import plain_tokenizers
from model.importers.usage.usage import read_usage
from model.importers.vocabularies import read_vocabularies
from service.errors import Invalid
from service.text import tokenizer as service
from tests.model.importers.plain_models import SOURCES, TARGETS, refusal, translator, write

PAD, UNKNOWN = 1, 0
WORDS = ["<unk>", "<pad>", "<s>", "</s>", "der", "Hund", "ist", "groß", "."]
LETTERS = [*WORDS[:4], " ", "k", "i", "t", "a", "p", "ı", "ş", "\u0301", "😀"]


@pytest.fixture
def checkpoint(tmp_path):
    """Write a checkpoint with embeddings of 20 and 23 rows, and keys besides the usual ones."""

    def write_checkpoint(**more):
        theirs, keys = translator(29)
        torch.save(theirs.state_dict(), tmp_path / "model.pt")
        write(tmp_path, **keys | more)
        return Checkpoint(tmp_path)

    return write_checkpoint


def padded(tokens, rows):
    return [*tokens, *(f"<unused {i}>".replace(" ", "_") for i in range(rows - len(tokens)))]


def vocabulary(path, tokens):
    path.write_text(json.dumps({token: i for i, token in enumerate(tokens)}))


def word_list(path, tokens, rows):
    path.write_text("\n".join(padded(tokens, rows)) + "\n")


def library_file(path, tokens=WORDS, special=(), decoder=None, splitter=None, unknown="<unk>"):
    tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(tokens)}, unk_token=unknown))
    tokenizer.pre_tokenizer = splitter or pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoder
    tokenizer.add_special_tokens([*special])
    tokenizer.post_processor = TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 2), ("</s>", 3)]
    )
    tokenizer.enable_padding(length=20)
    tokenizer.enable_truncation(5)
    tokenizer.save(str(path))


BY_LETTER = {"splitter": pre_tokenizers.Split("", "isolated"), "decoder": decoders.Fuse()}


def test_tokenizers_are_files_or_word_lists(checkpoint, tmp_path):
    library_file(tmp_path / "source.tokenizer.json")
    word_list(tmp_path / "words.txt", WORDS, TARGETS)
    made = plain_tokenizers(checkpoint(target_vocabulary="words.txt", unknown_token="<unk>"))
    for tokenizer in made:  # ids are places in WORDS; nothing is added or cut
        assert tokenizer.encode("der Hund  ist\ngroß . wow").ids == [4, 5, 6, 7, 8, 0]
        assert tokenizer.decode([2, 4, 5, 0, 3]) == "der Hund <unk>"


@pytest.mark.parametrize("file", ["vocab.json", "letters.txt"])
def test_letters_are_tokens_of_one_character(checkpoint, tmp_path, file):
    """The oracle is Python: a character is a code point, and its id is its place."""
    if file == "vocab.json":
        vocabulary(tmp_path / file, LETTERS)
    else:
        word_list(tmp_path / file, LETTERS, SOURCES)
    library_file(tmp_path / "target.tokenizer.json")
    letters, _ = plain_tokenizers(
        checkpoint(source_vocabulary=file, unit="letters", unknown_token="<unk>")
    )
    for text in ("kitap", "a ka\u0301 \U0001f600", " kı ş", "<s>ka</s>", "Kx\nq"):
        ids = [LETTERS.index(letter) if letter in LETTERS else UNKNOWN for letter in text]
        assert letters.encode(text).ids == ids
        assert letters.decode(ids) == "".join(LETTERS[i] for i in ids)
    assert letters.decode([2, 5, 6, 7, 3, 1]) == "kit"


def test_each_side_may_have_another_unit(checkpoint, tmp_path):
    vocabulary(tmp_path / "letters.json", LETTERS)
    vocabulary(tmp_path / "words.json", WORDS)
    source, target = plain_tokenizers(
        checkpoint(
            source_vocabulary="letters.json",
            target_vocabulary="words.json",
            unit=["letters", "words"],
            unknown_token="<unk>",
        )
    )
    assert source.encode("ak").ids == [8, 5]
    assert target.decode(target.encode("der Hund").ids) == "der Hund"


def bpe(unknown, vocab):
    return BPE({token: i for i, token in enumerate(vocab)}, [], unk_token=unknown)


def wordpiece(path):
    pieces = [*LETTERS[:5], "k", "##i", "##t"]
    model = WordPiece({piece: i for i, piece in enumerate(pieces)}, unk_token="<unk>")
    tokenizer = Tokenizer(model)
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(["<unk>", "</s>"])
    tokenizer.save(str(path))


NO_UNKNOWN = ["<blank>", *LETTERS[1:]]
FILES = {  # how a source tokenizer is written; what heed.toml says; whether unknown text is read
    "special in its file": (
        lambda path: library_file(path, LETTERS, LETTERS[:4], **BY_LETTER),
        {},
        True,
    ),
    "special unknown alone": (
        lambda path: library_file(path, LETTERS, ["<unk>"], **BY_LETTER),
        {},
        True,
    ),
    "none special": (lambda path: library_file(path, LETTERS, **BY_LETTER), {}, True),
    "pieces of words": (wordpiece, {}, True),
    "none for unknown text": (
        lambda path: library_file(path, NO_UNKNOWN, **BY_LETTER),
        {},
        False,
    ),
    "padding for unknown text": (
        lambda path: library_file(path, LETTERS, unknown="<pad>", **BY_LETTER),
        {},
        False,
    ),
    "vocabulary with unknown": (
        lambda path: vocabulary(path, LETTERS),
        {"unknown_token": "<unk>"},
        True,
    ),
    "vocabulary without unknown": (lambda path: vocabulary(path, NO_UNKNOWN), {}, False),
}


@pytest.mark.parametrize("file", FILES)
def test_unknown_text_is_read_or_refused_as_bundle_json_says(checkpoint, tmp_path, file):
    save, keys, is_read = FILES[file]
    named = file.startswith("vocabulary")
    save(tmp_path / ("vocab.json" if named else "source.tokenizer.json"))
    if named:
        keys = keys | {"source_vocabulary": "vocab.json", "unit": ["letters", "words"]}
    library_file(tmp_path / "target.tokenizer.json")
    opened = checkpoint(**keys)
    vocabularies = read_vocabularies(opened)
    usage = read_usage(opened, vocabularies, read_plain(opened).config)
    assert usage.unknown_id == (None if is_read else PAD)
    forbidden = {PAD: "padding"} | ({} if usage.unknown_id is None else {PAD: "unknown"})
    read = service.Tokenizer(vocabularies.source.tokenizer, 50, forbidden)
    assert read.encode("kit", "/source").ids[0] == LETTERS.index("k")
    assert read.decode([2, 5, 3, 1]).text == "k"  # start, end and padding are special
    if is_read:
        assert UNKNOWN in read.encode("Ж", "/source").ids
    else:
        with pytest.raises(Invalid, match="'Ж'"):
            read.encode("kЖ", "/source")


@pytest.mark.parametrize(
    ("model", "splitter", "decoder"),
    [
        (WordLevel({x: i for i, x in enumerate(LETTERS)}, unk_token="<unk>"), "Split", None),
        (bpe("<unk>", LETTERS), "Split", None),
        (bpe("<unk>", LETTERS), "Whitespace", None),
        (WordLevel({x: i for i, x in enumerate(LETTERS)}, unk_token="<unk>"), "Split", "WordPiece"),
    ],
)
def test_spaces_between_decoded_letters_are_noticed(checkpoint, tmp_path, model, splitter, decoder):
    tokenizer = Tokenizer(model)
    splitters = {"Split": ("", "isolated"), "Whitespace": ()}
    tokenizer.pre_tokenizer = getattr(pre_tokenizers, splitter)(*splitters[splitter])
    tokenizer.decoder = getattr(decoders, decoder)() if decoder else None
    path = tmp_path / "target.tokenizer.json"
    tokenizer.save(str(path))
    library_file(tmp_path / "source.tokenizer.json")
    sentence = refusal(plain_tokenizers, checkpoint())
    assert "decodes 'aikptış' to 'a i k p t ı ş', with spaces between tokens" in sentence
    assert "tokenizers.decoders.Fuse()" in sentence
    tokenizer.decoder = decoders.Fuse()
    tokenizer.save(str(path))
    assert plain_tokenizers(checkpoint())[1].decode([5, 6, 7]) == "kit"


@pytest.mark.parametrize(
    ("tokens", "sentence"),
    [
        (WORDS, "has 9 tokens, but the model has 20 rows: give every row a line"),
        ([*padded(WORDS, SOURCES)[:-1], "der"], ":20: 'der' is in the list already"),
        ([*padded(WORDS, SOURCES)[:-1], ". 12"], ":20: expected one token, got '. 12'"),
        ([*padded(WORDS, SOURCES)[:-1], ""], ":20: expected one token, got ''"),
        (["UNK", *padded(WORDS, SOURCES)[1:]], "unknown_token is '<unk>', which words.txt lacks"),
    ],
)
def test_a_wrong_word_list_is_refused(checkpoint, tmp_path, tokens, sentence):
    (tmp_path / "words.txt").write_text("\n".join(tokens) + "\n")
    read = checkpoint(source_vocabulary="words.txt", unknown_token="<unk>")
    assert sentence in refusal(plain_tokenizers, read)


@pytest.mark.parametrize(
    ("content", "keys", "sentence"),
    [
        (WORDS, {"unit": "letters"}, 'has no token of one letter: leave unit = "letters" out'),
        (padded(LETTERS, 21), {"unit": "letters"}, "has 21 tokens, but the model has 20 rows"),
        (LETTERS, {"unit": "bytes"}, "has unit 'bytes': give one of words, letters, or a list"),
        (LETTERS[:1], {"unit": "words"}, "pad_id is 1, but vocab.json has only 1 tokens"),
    ],
)
def test_a_wrong_vocabulary_is_refused(checkpoint, tmp_path, content, keys, sentence):
    content = [token if token != "." else ".." for token in content]
    vocabulary(tmp_path / "vocab.json", content)
    library_file(tmp_path / "target.tokenizer.json")
    assert sentence in refusal(
        lambda: plain_tokenizers(checkpoint(source_vocabulary="vocab.json", **keys))
    )


def test_wrong_tokenizer_files_are_refused(checkpoint, tmp_path):
    path = tmp_path / "source.tokenizer.json"
    read = checkpoint()
    assert "has no source.tokenizer.json: save the tokenizer" in refusal(plain_tokenizers, read)
    path.write_text("{}")
    assert "is not a file of the tokenizers library" in refusal(plain_tokenizers, read)
    library_file(path, padded(WORDS, SOURCES + 1))
    assert "has a token of id 20, but the model has rows for only 20" in refusal(
        plain_tokenizers, read
    )
    missing = checkpoint(source_vocabulary="words.txt", unknown_token="<unk>")
    assert "has no words.txt" in refusal(plain_tokenizers, missing)
    (tmp_path / "words.txt").write_bytes(b"\xff")
    assert "words.txt is not UTF-8" in refusal(plain_tokenizers, missing)
