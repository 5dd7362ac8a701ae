from dataclasses import replace
from itertools import groupby, pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from model.data.pairs import (
    Example,
    PairFile,
    collate,
    concatenate_examples,
    encode_pairs,
    read_pair_file,
    read_pairs,
    refuse_special_tokens,
    shuffled_batches,
)
from model.data.tokenizers import SPECIALS, Unit, build_tokenizer, unit_of
from model.network.config import InputError
from tests.model.runs import CONFIG


@given(lengths=st.lists(st.integers(1, 7), min_size=1, max_size=60), seed=st.integers(0, 99))
def test_an_epoch_holds_every_example_once_in_batches_of_like_lengths(lengths, seed):
    examples = [Example([4 + i % 5] * n, [4 + i % 5] * n) for i, n in enumerate(lengths)]
    batches = list(shuffled_batches(examples, 4, CONFIG, seed))
    seen = sorted(length for batch in batches for length in batch.source_length.tolist())
    assert seen == sorted(lengths)
    spans = sorted((int(b.source_length.min()), int(b.source_length.max())) for b in batches)
    assert all(low >= high for (_, high), (low, _) in pairwise(spans))


@given(
    lengths=st.lists(st.integers(1, 4), max_size=60),
    share=st.floats(0, 1),
    longest=st.integers(3, 7),
    seed=st.integers(0, 99),
)
def test_concatenation_keeps_every_example_once_within_the_lengths(lengths, share, longest, seed):
    """Example i is i, n times, on both sides, so the parts of a concatenation can be told apart."""
    config = replace(CONFIG, max_source_length=longest, max_target_length=10 - longest)
    examples = [Example([i] * n, [i] * n) for i, n in enumerate(lengths)]
    whole = concatenate_examples(examples, share, config, seed)
    seen = [(i, sum(1 for _ in same)) for e in whole for i, same in groupby(e.source_ids)]
    assert sorted(seen) == list(enumerate(lengths))
    for example in whole:
        assert example.source_ids == example.target_ids
        parts = len(set(example.source_ids))
        assert parts in (1, 3)
        if parts == 3:
            assert len(example.source_ids) <= config.max_source_length
            assert len(example.target_ids) + 1 <= config.max_target_length
    assert sum(len(set(e.source_ids)) == 3 for e in whole) <= share * len(lengths) / 3 + 1


def test_a_share_of_1_concatenates_all_examples():
    whole = concatenate_examples([Example([4], [5, 6])] * 9, 1.0, CONFIG, seed=0)
    assert whole == [Example([4] * 3, [5, 6] * 3)] * 3


def test_the_decoder_reads_bos_and_the_target_and_predicts_the_target_and_eos():
    batch = collate([Example([4, 5], [6]), Example([4], [7, 8])], CONFIG)
    assert batch.source_ids.tolist() == [[4, 5], [4, 0]]
    assert batch.target_ids.tolist() == [[1, 6, 0], [1, 7, 8]]
    assert batch.next_ids.tolist() == [[6, 2, 0], [7, 8, 2]]
    assert batch.target_length.tolist() == [2, 3]


def test_a_line_that_is_not_a_pair_is_named(tmp_path):
    (tmp_path / "pairs.tsv").write_text("a\tb\nonly one\n")
    with pytest.raises(InputError, match=r"pairs\.tsv:2.*only one"):
        read_pairs(tmp_path / "pairs.tsv")


def test_pairs_are_split_at_newlines_only_and_must_be_utf_8(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_bytes("a\u2028b\tc\x0cd\r\ne\tf\n".encode())
    assert read_pairs(path) == [("a\u2028b", "c\x0cd"), ("e", "f")]
    path.write_bytes("\xe9\te".encode("latin-1"))
    with pytest.raises(InputError, match="is not UTF-8"):
        read_pairs(path)


def test_every_word_gets_a_token_whatever_their_number():
    words = [f"w{i}" for i in range(40_000)]
    tokenizer = build_tokenizer(words, Unit.words)
    ids = {ids for word in words for ids in tokenizer.encode(word).ids}
    assert ids == set(range(len(SPECIALS), len(SPECIALS) + len(words)))


@pytest.mark.parametrize("special", SPECIALS)
def test_a_text_cannot_name_a_special_token(special):
    pairs = [("a", "x y"), ("b", f"x {special}")]
    source = build_tokenizer((s for s, _ in pairs), Unit.characters)
    target = build_tokenizer((t for _, t in pairs), Unit.words)
    file = PairFile(pairs, ["p.tsv:1", "p.tsv:2"])
    with pytest.raises(InputError, match=f"p.tsv:2: 'x {special}' has '{special}'"):
        refuse_special_tokens(file, source, target)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"max_source_length": 3}, r"p\.tsv:4: source 'abcd' has 4 tokens.*max_source_length of 3"),
        (
            {"max_target_length": 3},
            r"p\.tsv:3: target 'x y z' has 4 tokens.*max_target_length of 3",
        ),
    ],
)
def test_a_text_that_is_too_long_is_named_with_its_file_and_line(tmp_path, changes, error):
    path = tmp_path / "p.tsv"
    path.write_text("a\tx\n\nb\tx y z\nabcd\tx\n")  # a blank line counts as a line
    pairs = read_pairs(path)
    source = build_tokenizer((s for s, _ in pairs), Unit.characters)
    target = build_tokenizer((t for _, t in pairs), Unit.words)
    with pytest.raises(InputError, match=error):
        encode_pairs(read_pair_file(path), source, target, replace(CONFIG, **changes))


@pytest.mark.parametrize("unit", Unit)
def test_the_unit_of_a_tokenizer_is_known_when_it_comes_back_from_disk(tmp_path, unit):
    build_tokenizer(["a b"], unit).save(str(tmp_path / "tokenizer.json"))
    assert unit_of(Tokenizer.from_file(str(tmp_path / "tokenizer.json"))) is unit


def test_concatenation_keeps_the_soft_labels_except_those_of_inner_ends():
    examples = [
        Example([i], [i] * count, torch.tensor([[float(i)]] * count + [[10.0 + i]]))
        for i, count in enumerate((2, 1, 3))
    ]
    [whole] = concatenate_examples(examples, 1.0, CONFIG, seed=0)
    last = whole.source_ids[-1]
    assert whole.soft_labels.flatten().tolist() == [*whole.target_ids, 10 + last]
    [apart] = concatenate_examples(examples[:1], 1.0, CONFIG, seed=0)
    assert apart is examples[0]
