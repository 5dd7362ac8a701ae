"""Texts of the proofs: those of a file, or built-in sentences that the model reads."""

import pytest
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers.models import WordLevel

from model.data.sentences import ENOUGH, MOST, READABLE, SENTENCES
from model.importers.proofs.expected import read_expected
from model.importers.proofs.texts import (
    LONGEST,
    SHORT,
    SPARE,
    Reader,
    read_texts,
)
from model.importers.tokenizers.pieces import Converted
from model.importers.vocabularies import Side
from model.network.config import InputError, TransformerConfig
from model.usage import Usage

UNKNOWN = "<unk>"


def side_of(letters):
    """A tokenizer of letters, the ids of which are in their order."""
    ids = {name: i for i, name in enumerate(["<pad>", "<s>", "</s>", UNKNOWN, *letters])}
    tokenizer = Tokenizer(WordLevel(ids, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.add_special_tokens(["<pad>", "<s>", "</s>"])
    return Side(Converted(tokenizer, compose=False, dropped=0))


def reader_of(letters, weights=1000, **changes):
    side = side_of(letters)
    size = side.tokenizer.get_vocab_size()
    sizes = {"source_vocab_size": size, "target_vocab_size": size, "d_model": 8, "num_heads": 2}
    config = TransformerConfig(**sizes, **{"max_source_length": 200, **changes})
    usage = Usage(
        decoder_start=[1], max_new_tokens=9, unknown_id=None, source_prefix=[1], source_suffix=[2]
    )
    return Reader(side, usage, config, weights), usage


def letters_of(language):
    return sorted({letter for text in SENTENCES[language] for letter in text})


@pytest.mark.parametrize("language", ["Russian", "Greek", "Korean", "Armenian"])
def test_sentences_are_of_a_language_that_the_tokenizer_reads(language):
    reader, usage = reader_of(letters_of(language))
    texts = read_texts(reader, usage, None)
    own = [reader.source(reader.encode(text)) for text in SENTENCES[language]]
    assert all(source in texts.sources for source in own)
    assert texts.origin == "built-in sentences"
    assert texts.unknown <= READABLE
    assert (f"{MOST} texts" in texts.proof().result) == (len(texts.sources) == MOST)


def test_the_language_of_the_first_tokens_comes_first():
    """A vocabulary in the order of frequency has its own language first."""
    russian = letters_of("Russian")
    letters = [*russian, *(each for each in letters_of("English") if each not in russian)]
    texts = read_texts(*reader_of(letters), None)
    known = {*range(4 + len(russian))}
    assert len(texts.sources) >= ENOUGH
    assert all({*source} <= known | {3} for source in texts.sources[:8])


@pytest.mark.parametrize("letters", ["αβ", "01", "ꙮ"])
def test_random_known_tokens_stand_for_sentences_that_it_cannot_read(letters):
    reader, usage = reader_of(letters)
    texts = read_texts(reader, usage, None)
    assert texts.origin == "random tokens"
    assert texts.unknown == 0
    for source in texts.sources:
        assert source[0] == 1
        assert source[-1] == 2
        assert {*source[1:-1]} <= {*range(4, 4 + len(letters))}


def test_a_file_gives_the_texts_up_to_a_tab(tmp_path):
    reader, usage = reader_of("abc")
    file = tmp_path / "texts.tsv"
    file.write_text("ab\tx\n\nabcz\na\n" * 20, encoding="utf-8")
    texts = read_texts(reader, usage, file)
    assert texts.origin == "texts.tsv"
    assert [1, 4, 5, 2] in texts.sources
    assert [1, 4, 5, 6, 3, 2] in texts.sources
    assert len(texts.sources) <= MOST
    assert texts.unknown == pytest.approx(1 / 7, abs=0.02)


def test_a_text_is_cut_to_what_the_model_reads():
    reader, _ = reader_of("abc", max_source_length=5)
    assert reader.source(reader.encode("abcabc")) == [1, 4, 5, 6, 2]
    with pytest.raises(InputError, match="place: the source has no token"):
        reader.whole("", "place")
    with pytest.raises(InputError, match="place: the source has 4 tokens, and the model reads 3"):
        reader.whole("abca", "place")


def test_texts_of_a_large_network_are_shorter():
    for weights, longest in ((10**6, LONGEST), (10**9, SHORT)):
        reader, usage = reader_of(letters_of("Russian"), weights)
        texts = read_texts(reader, usage, None)
        assert max(map(len, texts.sources)) <= longest + 2
        assert texts.longest <= longest + SPARE


def test_texts_without_a_token_are_refused(tmp_path):
    reader, usage = reader_of("abc")
    file = tmp_path / "texts.txt"
    for content, message in (("\n", "holds no text"), ("", "holds no text")):
        file.write_text(content)
        with pytest.raises(InputError, match=message):
            read_texts(reader, usage, file)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "holds no answer: give a file of lines source<TAB>target"),
        ("a\tb\nno tab\n", "answers.tsv:2: expected source<TAB>target, got 'no tab'"),
    ],
)
def test_a_file_of_answers_has_a_tab_on_each_line(tmp_path, content, message):
    file = tmp_path / "answers.tsv"
    file.write_text(content)
    with pytest.raises(InputError, match=message):
        read_expected(file)
