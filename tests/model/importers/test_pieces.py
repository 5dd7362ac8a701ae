import json
import random
import shutil
import unicodedata
from itertools import product

import pytest
from hypothesis import example as given_text
from hypothesis import given, settings
from hypothesis import strategies as st
from sentencepiece import SentencePieceProcessor, sentencepiece_model_pb2

from model.importers.proofs.tokenizers import prove_pieces
from model.importers.tokenizers.added_tokens import Lexicon
from model.importers.tokenizers.compare import compare_pieces, compose, sentencepiece_encoder
from model.importers.tokenizers.piece_file import read_pieces, read_vocabulary
from model.importers.tokenizers.pieces import MARIAN_SPECIAL, Converted, convert_pieces
from model.importers.tokenizers.probes import COUNT, WORDS, probes
from model.importers.vocabularies import Vocabularies, side_of
from model.network.config import InputError
from tests.model.importers.conftest import SYMBOLS, open_example, serve, train
from tests.model.importers.served import check_places

MARKS = "\u0300\u0301\u0302\u0308\u0323\u031b\u0327\u05b8\u064e\u0653\u3099\uff9e"
ODD = "aeoẸệêＡ\ufeefﬁｶか\u1112\u1161\u11ab \t\r\n\u00a0</s>🙂"
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
odd_texts = st.text(st.sampled_from(ODD + MARKS), max_size=12)


def test_ids_are_those_of_sentencepiece_in_every_script(example):
    assert len(set(probes())) == COUNT
    assert [text for text in probes() if not example.agrees(text)] == []


def test_a_converted_tokenizer_passes_its_proof(example):
    assert compare_pieces(example.converted, sentencepiece_encoder(example.file)) == []


def test_the_proof_finds_a_tokenizer_that_does_not_compose(models):
    example = open_example(models["unigram"])
    converted = Converted(example.converted.tokenizer, compose=False, dropped=0)
    assert 5 < len(compare_pieces(converted, sentencepiece_encoder(example.file))) < 100
    assert compare_pieces(converted, lambda text: None) == []


# with a letter, under six bytes
LONG_MARKS = "A\u17b4 B\u0951 C\u0e31 \u00c9\u17b4 A\U000e0100 A\u0488 \u00bd\u200d A\u0e33"


@settings(max_examples=200)
@given(text=texts)
@given_text("")
@given_text("  a  ")
@given_text(LONG_MARKS)
def test_ids_are_those_of_sentencepiece_for_any_text(example, text):
    assert example.agrees(text)


@pytest.mark.parametrize("name", ["folded", "unigram"])
@pytest.mark.parametrize("letter", ["A", "É", "ﬁ", "½"])
def test_no_character_takes_the_letter_before_it_with_it(models, name, letter):
    """Of two that have under six bytes together, which the library normalizes as one."""
    example, most = open_example(models[name]), 6 - len(letter.encode())
    codes = (*range(1, 0xD800), *range(0xE000, 0x20000), *range(0xE0000, 0xE0200))
    others = filter(lambda other: len(other.encode()) < most, map(chr, codes))
    assert [hex(ord(each)) for each in others if not example.agrees(letter + each)] == []
    # nor of one that precedes it
    others = filter(lambda other: len(other.encode()) < most, map(chr, codes))
    assert [hex(ord(each)) for each in others if not example.agrees(each + letter)] == []


@settings(max_examples=300)
@given(text=odd_texts)
@given_text("\u0dd9\u0dcf\u0dca \u0dd9\u0dca \u00bd\u0dd9")
@given_text("o\u0323\u0302 \u00ea\u0301 \u00ea\u0323")
def test_ids_are_those_of_sentencepiece_for_marks_and_spaces(example, text):
    assert example.agrees(text)


def test_the_proof_keeps_long_marks_as_the_service_does(models):
    example = open_example(models["folded"])
    ours = example.converted.tokenizer
    encoded = ours.encode(compose(LONG_MARKS, ours), add_special_tokens=False)
    assert encoded.ids == example.oracle.encode(LONG_MARKS)


def test_the_service_composes_as_the_proof_does_and_sentencepiece_too(models):
    example = open_example(models["unigram"])
    ours, served = example.converted.tokenizer, example.served._library.normalizer
    apart = {
        unicodedata.normalize("NFD", chr(code))
        for code in range(0x30000)
        if not 0xD800 <= code < 0xE000
    }
    for text in [*sorted(apart), *probes()]:
        expected = example.oracle.normalize(text).replace(" ", "\u2581").lstrip("\u2581")
        assert served.normalize_str(text).lstrip("\u2581") == expected
        assert ours.normalizer.normalize_str(compose(text, ours)).lstrip("\u2581") == expected


def decode(oracle, ids):
    """Return sentencepiece's text of ids, with the name of the unknown token as Hugging Face's
    tokenizers write it."""
    return oracle.decode(ids).replace(" \u2047 ", "<unk>")


def test_texts_are_decoded_as_by_sentencepiece(example):
    for text in probes():
        ids = example.oracle.encode(text)
        assert example.served.decode(ids).text == decode(example.oracle, ids)


def test_streamed_text_is_the_whole_text(example):
    """Even if bytes come in an order that is not text."""
    chance = random.Random(0)
    ids = range(3, min(300, len(example.file.pieces)))
    for _ in range(300):
        chosen = [*chance.choices(ids, k=chance.randint(1, 12)), *example.oracle.encode("a")]
        whole = decode(example.oracle, chosen)
        assert example.served.decode(chosen).text.lstrip() == whole.lstrip()


@settings(max_examples=200)
@given(text=texts)
def test_every_letter_belongs_to_one_token(example, text):
    tokens = [t for t in example.served.encode(f"b{text}b", "/").tokens if t.start is not None]
    check_places(f"b{text}b", tokens)


def test_every_letter_of_the_built_in_texts_belongs_to_one_token(example):
    for text in probes():
        check_places(text, example.served.encode(text, "/").tokens)


def test_a_composed_letter_has_its_base_and_the_first_space_no_letter(models):
    example = open_example(models["bpe-bytes"])
    tokens = example.served.encode("e\u0301 ⌘x", "/").tokens
    places = {token.text: "e\u0301 ⌘x"[token.start : token.end] for token in tokens}
    assert "e\u0301" in places.values()
    assert [places[f"<0x{byte:02X}>"] for byte in "⌘".encode()] == ["", "", "⌘"]


@pytest.mark.parametrize("typed", ["</s>", "<s>", "<unk>", "<pad>", "a</s> <s>b</s>"])
def test_typed_special_tokens_are_text(example, typed):
    ids = example.encode(typed)
    assert not {0, 1, 2} & set(ids) or example.oracle.encode(typed).count(0) == ids.count(0)
    assert example.agrees(typed)
    assert example.served.name(2) == "</s>"


@pytest.mark.parametrize("kind", ["folded", "bpe-symbols"])
def test_user_defined_symbols_are_one_token(models, kind):
    example = open_example(models[kind])
    symbols = {example.oracle.piece_to_id(symbol) for symbol in SYMBOLS}
    for text in ("<2fr> guten Tag", "a<2fr>b>>x<<@", "<2fr>", "@@ a @"):
        assert set(example.encode(text)) & symbols
        assert example.agrees(text)


def test_a_special_token_may_be_a_piece_that_others_are_merged_of(models):
    """As the token of a role that a file names by mistake, or on purpose."""
    file = read_pieces(models["bpe"])
    whole = next(text for text in file.names if text.isalpha() and len(text) == 2)
    tokenizer = convert_pieces(file, special=["</s>", whole[0], whole]).tokenizer
    ids = tokenizer.encode(f"{whole} {whole[1]}", add_special_tokens=False).ids
    assert not {file.names.index(whole), file.names.index(whole[0])} & {*ids}
    assert file.names.index(whole[1]) in ids


def test_ids_are_places_in_the_vocabulary(models):
    """As fairseq has them: four tokens of its own, the pieces, then languages."""
    file = read_pieces(models["unigram"])
    names = ["<s>", "<pad>", "</s>", "<unk>", *file.names[3:], "fra_Latn", "en_XX"]
    special = ["<s>", "<pad>", "</s>", "fra_Latn", "en_XX"]
    tokenizer = serve(convert_pieces(file, names, special))
    oracle = SentencePieceProcessor(model_file=str(file.path))
    for text in probes():
        expected = [i + 1 if i else 3 for i in oracle.encode(text)]
        assert [t.id for t in tokenizer.encode(text, "/").tokens] == expected
    assert [tokenizer.name(i) for i in (1, 2, len(names) - 2)] == ["<pad>", "</s>", "fra_Latn"]
    read = decode(oracle, oracle.encode(text))
    assert tokenizer.decode([len(names) - 1, *expected, 2]).text == read


@pytest.fixture(scope="module")
def marian(tmp_path_factory):
    """A Marian checkpoint's tokenizer files: two models, whose vocabulary lacks two pieces."""
    folder = tmp_path_factory.mktemp("marian")
    scripts = (("source", "English German Greek"), ("target", "French Cyrillic Vietnamese"))
    for name, chosen in scripts:
        lines = [WORDS[script].split() for script in chosen.split()]
        chance = random.Random(2)
        sentences = [" ".join(chance.choices(words, k=7)) for words in lines for _ in range(80)]
        train(folder / name, sentences, vocab_size=400, model_type="unigram")
        (folder / f"{name}.model").rename(folder / f"{name}.spm")
    source, target = (read_pieces(folder / f"{name}.spm") for name, _ in scripts)
    dropped = [p.text for p in source.pieces if len(p.text) > 3][3:5]
    pieces = [n for n in (*source.names[3:], *target.names[3:]) if n not in dropped]
    names = list(dict.fromkeys(["</s>", "<unk>", *pieces, ">>fra<<", ">>rus<<", "<pad>"]))
    (folder / "vocab.json").write_text(json.dumps({name: i for i, name in enumerate(names)}))
    config = {"source_lang": "eng", "target_lang": "mul", "model_max_length": 512}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def convert_side(folder, side):
    names = read_vocabulary(folder / "vocab.json")
    special = [*MARIAN_SPECIAL, *(name for name in names if name.startswith(">>"))]
    return convert_pieces(read_pieces(folder / f"{side}.spm"), names, special)


@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
def test_marian_ids_are_those_of_hugging_face(marian):
    from transformers import MarianTokenizer

    oracle = MarianTokenizer.from_pretrained(marian)
    scripts = ["English", "German", "Greek", "French", "Cyrillic", "Vietnamese"]
    words = [word for script in scripts for word in WORDS[script].split()]
    texts = [*probes(), *(" ".join(random.Random(i).choices(words, k=5)) for i in range(300))]
    source, target = (convert_side(marian, side) for side in ("source", "target"))
    assert source.dropped == 2
    compared = 0
    language = {">>fra<< ": [source.tokenizer.token_to_id(">>fra<< ")], "": []}  # by what is typed
    for text, (typed, prefix) in product(texts, language.items()):
        expected = oracle(typed + text).input_ids[:-1]
        if oracle.unk_token_id not in expected:
            compared += 1
            ids = source.tokenizer.encode(text).ids
            assert prefix + ids == expected
            assert source.tokenizer.decode(ids) == oracle.decode(ids)
        expected = oracle(text_target=text).input_ids[:-1]
        if oracle.unk_token_id not in expected and ">>" not in text:
            assert target.tokenizer.encode(text).ids == expected
    assert compared > 100


def test_letters_of_the_other_side_are_known_and_its_words_are_not(marian):
    source = convert_side(marian, "source").tokenizer
    assert "д" in source.encode("the д").tokens
    assert "\u2581garçon" not in source.encode("the garçon").tokens
    assert source.token_to_id("\u2581garçon ") is not None


@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
def test_unknown_letters_that_are_a_token_of_the_other_side_are_not_compared(marian, tmp_path):
    """Hugging Face looks them up together, Heed one by one."""
    from transformers import MarianTokenizer

    folder = shutil.copytree(marian, tmp_path / "marian")
    names = [*read_vocabulary(folder / "vocab.json"), "8", "0", "80"]  # no side knows digits
    (folder / "vocab.json").write_text(json.dumps({name: i for i, name in enumerate(names)}))
    oracle, target = MarianTokenizer.from_pretrained(folder), convert_side(folder, "target")
    *_, last, _ = oracle(text_target="garçon80").input_ids
    assert names[last] == "80"
    assert target.tokenizer.encode("garçon80").tokens[-2:] == ["8", "0"]
    encode = sentencepiece_encoder(read_pieces(folder / "target.spm"), names)
    assert encode("garçon80") is None
    assert encode("garçon8") == target.tokenizer.encode("garçon8").ids
    assert compare_pieces(target, encode, ["garçon80"]) == []


def test_the_proof_counts_the_pieces_that_the_vocabulary_lacks(marian):
    names = read_vocabulary(marian / "vocab.json")
    special = [*MARIAN_SPECIAL, ">>fra<<", ">>rus<<"]
    lexicon = Lexicon(names, len(names), {}, frozenset())
    sides = [side_of(marian / f"{side}.spm", lexicon, special) for side in ("source", "target")]
    source, target = prove_pieces(Vocabularies(*sides))
    assert source.holds
    assert target.holds
    encode = sentencepiece_encoder(read_pieces(marian / "source.spm"), names)
    skipped = [text for text in probes() if encode(text) is None]
    assert f"; {len(skipped)} are not compared; " in source.result
    assert source.result.endswith("; 2 pieces of source.spm have no id")
    assert "have no id" not in target.result


def corrupted(path, change):
    model = sentencepiece_model_pb2.ModelProto()
    model.ParseFromString(path.read_bytes())
    change(model)
    return model.SerializeToString()


ERRORS = {
    "is missing": None,
    "is not a whole sentencepiece model": lambda path: b"",
    "is not a sentencepiece model": lambda path: path.read_bytes()[:-7],
    "is a sentencepiece model of type word: give unigram or bpe": lambda path: corrupted(
        path, lambda model: setattr(model.trainer_spec, "model_type", 3)
    ),
    "has no unknown piece": lambda path: corrupted(path, lambda model: model.pieces.pop(0)),
    "has pieces or a normalizer that are damaged": lambda path: corrupted(
        path,
        lambda model: setattr(model.normalizer_spec, "precompiled_charsmap", b"\x08\0\0\0trie"),
    ),
    "was trained with treat_whitespace_as_suffix True: only False": lambda path: corrupted(
        path, lambda model: setattr(model.trainer_spec, "treat_whitespace_as_suffix", True)
    ),
}


@pytest.mark.parametrize("message", ERRORS)
def test_files_that_are_not_a_usable_model_are_refused(models, tmp_path, message):
    path = tmp_path / "spiece.model"
    if change := ERRORS[message]:
        path.write_bytes(change(models["unigram"]))
    with pytest.raises(InputError, match=message):
        read_pieces(path)


@pytest.mark.parametrize("fields", [3, 700])
def test_a_model_cut_off_between_two_fields_is_refused(models, tmp_path, fields):
    path = tmp_path / "spiece.model"
    model = sentencepiece_model_pb2.ModelProto()
    model.ParseFromString(models["bpe"].read_bytes())
    path.write_bytes(
        sentencepiece_model_pb2.ModelProto(pieces=model.pieces[:fields]).SerializeToString()
    )
    with pytest.raises(InputError, match="is not a whole sentencepiece model"):
        read_pieces(path)


def test_a_vocabulary_without_a_needed_token_is_refused(models):
    file = read_pieces(models["bpe"])
    with pytest.raises(InputError, match="needs the tokens <unk>, which the vocabulary of 2"):
        convert_pieces(file, ["a", "b"])
    with pytest.raises(InputError, match="needs the tokens fra_Latn, which"):
        convert_pieces(file, special=["fra_Latn"])
    with pytest.raises(InputError, match="has 'a' twice"):
        convert_pieces(file, ["<unk>", "a", "a"])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is not JSON"),
        ("[1, 2]", "is not an object such as"),
        ('{"a": 0, "b": 2}', "gives 'b' the id 2 where 1 comes next: ids are 0 to 1, each once"),
        ('{"a": 0, "b": 0}', "gives 'b' the id 0 where 1 comes next"),
        ('{"a": 0, "b": "1"}', "gives 'b' the id '1': give a whole number"),
    ],
)
def test_a_vocabulary_file_that_is_none_is_refused(tmp_path, content, message):
    path = tmp_path / "vocab.json"
    path.write_text(content)
    with pytest.raises(InputError, match=message):
        read_vocabulary(path)
