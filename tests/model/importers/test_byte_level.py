import json
import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import ByteLevelBPETokenizer, Tokenizer, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer
from transformers import AutoTokenizer

from model.importers.checkpoint import Checkpoint
from model.importers.proofs.tokenizers import prove_pieces
from model.importers.tokenizers.byte_level import convert_byte_level
from model.importers.tokenizers.piece_file import read_vocabulary
from model.importers.tokenizers.probes import WORDS, probes
from model.importers.vocabularies import read_vocabularies
from model.network.config import InputError
from tests.model.importers.checkpoints import write_bart
from tests.model.importers.conftest import serve
from tests.model.importers.served import check_places

SPECIAL = ["<s>", "<pad>", "</s>", "<mask>"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """vocab.json and merges.txt, learned from the built-in words."""
    folder = tmp_path_factory.mktemp("bytes")
    library = Tokenizer(BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = BpeTrainer(
        vocab_size=900,
        special_tokens=["<s>", "<pad>", "</s>", "<unk>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    library.train_from_iterator(list(WORDS.values()) * 3, trainer)
    library.model.save(str(folder))
    vocabulary = json.loads((folder / "vocab.json").read_text())
    vocabulary["<mask>"] = len(vocabulary)
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    return folder


@pytest.fixture(scope="module")
def converted(folder):
    names = read_vocabulary(folder / "vocab.json")
    return convert_byte_level(names, folder / "merges.txt", SPECIAL)


@pytest.fixture(scope="module")
def encode(folder):
    """Byte-level BPE as it was published: split, write bytes as letters, merge the first pair."""
    vocabulary = json.loads((folder / "vocab.json").read_text())
    lines = (folder / "merges.txt").read_text().splitlines()[1:]
    ranks = {tuple(line.split(" ")): i for i, line in enumerate(lines)}
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {byte: chr(byte) for byte in printable}
    letters |= {byte: chr(256 + i) for i, byte in enumerate(others)}
    splitter = pytest.importorskip("regex").compile(
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
    )

    def merge(word):
        while pairs := [pair for pair in pairwise(word) if pair in ranks]:
            best, merged, i = min(pairs, key=ranks.__getitem__), [], 0
            while i < len(word):
                joined = tuple(word[i : i + 2]) == best
                merged.append(word[i] + word[i + 1] if joined else word[i])
                i += 2 if joined else 1
            word = merged
        return word

    def encode(text):
        words = [[letters[byte] for byte in word.encode()] for word in splitter.findall(text)]
        return [vocabulary[piece] for word in words for piece in merge(word)]

    return encode


def test_ids_are_those_of_the_published_algorithm(converted, encode):
    for text in probes():
        assert converted.tokenizer.encode(text).ids == encode(text)


@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=20))
def test_any_text_decodes_to_itself_and_every_letter_has_one_place(converted, text):
    tokens = serve(converted).encode(f"b{text}b", "/")
    assert serve(converted).decode(tokens.ids).text.endswith(f"b{text}b".lstrip())
    check_places(f"b{text}b", tokens.tokens)


def test_typed_special_tokens_are_text(converted):
    for typed in SPECIAL:
        ids = converted.tokenizer.encode(f"a{typed} {typed}").ids
        assert not {converted.tokenizer.token_to_id(name) for name in SPECIAL} & set(ids)


def test_streamed_text_is_the_whole_text(converted):
    served, chance = serve(converted), random.Random(0)
    last = converted.tokenizer.encode("a").ids
    for _ in range(300):
        ids = chance.choices(range(4, 500), k=12) + last
        whole = converted.tokenizer.decode(ids, skip_special_tokens=True)
        assert served.decode(ids).text == whole


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("vocab.json", '{"a": 0}', 'vocab.json lacks <s>, !, ", '),
        ("merges.txt", "#version: 0.2\na\n", "line 2 of .*merges.txt is 'a': every line names two"),
        ("merges.txt", "\x01\x02 q\n", "line 1 of .*merges.txt is "),
        ("merges.txt", None, "merges.txt is missing"),
    ],
)
def test_invalid_files_are_refused(folder, tmp_path, name, content, message):
    for each in ("vocab.json", "merges.txt"):
        (tmp_path / each).write_bytes((folder / each).read_bytes())
    if content is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_text(content)
    names = read_vocabulary(tmp_path / "vocab.json")
    with pytest.raises(InputError, match=message):
        convert_byte_level(names, tmp_path / "merges.txt", ["<s>"])


@pytest.mark.parametrize("named", ["BartTokenizer", "BartTokenizerFast", "PreTrainedTokenizerFast"])
@pytest.mark.parametrize("stored", [None, False, True])  # what tokenizer.json has; None: no file
@pytest.mark.parametrize("given", [None, False, True])  # what tokenizer_config.json has
def test_a_space_is_added_where_hugging_face_adds_one(tmp_path, named, stored, given):
    write_bart(tmp_path)
    options = {"tokenizer_class": named} | ({} if given is None else {"add_prefix_space": given})
    if stored is not None:
        library = ByteLevelBPETokenizer(
            str(tmp_path / "vocab.json"), str(tmp_path / "merges.txt"), add_prefix_space=stored
        )
        library.save(str(tmp_path / "tokenizer.json"))
    elif named == "PreTrainedTokenizerFast":
        pytest.skip("this class reads tokenizer.json alone")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(options))
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    vocabularies = read_vocabularies(Checkpoint(tmp_path))
    ours = serve(vocabularies.source.converted)
    for text in ("mystery", " mystery", "  a b", "a", "\n"):
        assert ours.encode(text, "/").ids == theirs(text, add_special_tokens=False).input_ids
    assert all(proof.holds for proof in prove_pieces(vocabularies))


def test_the_proof_finds_a_space_too_many(tmp_path):
    write_bart(tmp_path)
    vocabularies = read_vocabularies(Checkpoint(tmp_path))
    vocabularies.source.tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    (proof, _) = prove_pieces(vocabularies)
    assert proof.holds is False
    assert proof.reference.startswith("tokenizers ")
