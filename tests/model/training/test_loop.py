import math
from contextlib import contextmanager
from dataclasses import replace
from itertools import groupby, pairwise
from pkgutil import resolve_name

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file

from model.checkpoint import (
    WEIGHTS,
    average_weights,
    create_run,
    load_config,
    load_model,
    load_tokenizers,
    save_weights,
)
from model.data.pairs import (
    Example,
    collate,
    encode_pairs,
    join_examples,
    read_pairs,
    refuse_specials,
    shuffled_batches,
)
from model.data.tokenizers import SPECIALS, Unit, build_tokenizer
from model.evaluate import error_rates, predict
from model.network.config import InputError, TransformerConfig
from model.network.transformer import Transformer
from model.training.loop import (
    LOSSES,
    TrainingOptions,
    learning_rate,
    loss_of,
    train,
    train_epoch,
)

CONFIG = TransformerConfig(
    source_vocab_size=9,
    target_vocab_size=9,
    d_model=16,
    d_ff=32,
    num_heads=2,
    d_qk=7,
    d_v=6,
    num_encoder_layers=1,
    num_decoder_layers=1,
    dropout=0.1,
    max_source_length=8,
    max_target_length=8,
)
OPTIONS = TrainingOptions(
    epochs=4,
    batch_size=4,
    learning_rate=1e-2,
    warmup=0.05,
    weight_decay=0.02,
    label_smoothing=0.1,
    joined=0.3,
    average=2,
    seed=0,
    pairs_sha256="",
    start=None,
    teachers=[],
    made_up=0.0,
)


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
def test_joined_examples_hold_every_example_once_and_fit(lengths, share, longest, seed):
    """Example i is i, n times, on both sides: what is joined can be parted again."""
    config = replace(CONFIG, max_source_length=longest, max_target_length=10 - longest)
    examples = [Example([i] * n, [i] * n) for i, n in enumerate(lengths)]
    joined = join_examples(examples, share, config, seed)
    seen = [(i, sum(1 for _ in same)) for e in joined for i, same in groupby(e.source_ids)]
    assert sorted(seen) == list(enumerate(lengths))
    for example in joined:
        assert example.source_ids == example.target_ids
        parts = len(set(example.source_ids))
        assert parts in (1, 3)
        if parts == 3:
            assert len(example.source_ids) <= config.max_source_length
            assert len(example.target_ids) + 1 <= config.max_target_length
    assert sum(len(set(e.source_ids)) == 3 for e in joined) <= share * len(lengths) / 3 + 1


def test_all_examples_are_joined_when_all_should_be():
    joined = join_examples([Example([4], [5, 6])] * 9, 1.0, CONFIG, seed=0)
    assert joined == [Example([4] * 3, [5, 6] * 3)] * 3


def test_the_decoder_reads_bos_and_the_target_and_predicts_the_target_and_eos():
    batch = collate([Example([4, 5], [6]), Example([4], [7, 8])], CONFIG)
    assert batch.source_ids.tolist() == [[4, 5], [4, 0]]
    assert batch.target_ids.tolist() == [[1, 6, 0], [1, 7, 8]]
    assert batch.next_ids.tolist() == [[6, 2, 0], [7, 8, 2]]
    assert batch.target_length.tolist() == [2, 3]


def test_a_line_that_is_no_pair_is_named(tmp_path):
    (tmp_path / "pairs.tsv").write_text("a\tb\nonly one\n")
    with pytest.raises(InputError, match=r"pairs\.tsv:2.*only one"):
        read_pairs(tmp_path / "pairs.tsv")


def test_pairs_are_lines_of_utf_8_whatever_else_parts_lines_elsewhere(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_bytes("a\u2028b\tc\x0cd\r\ne\tf\n".encode())
    assert read_pairs(path) == [("a\u2028b", "c\x0cd"), ("e", "f")]
    path.write_bytes("\xe9\te".encode("latin-1"))
    with pytest.raises(InputError, match="is not UTF-8"):
        read_pairs(path)


def test_every_word_has_a_token_however_many_there_are():
    words = [f"w{i}" for i in range(40_000)]
    tokenizer = build_tokenizer(words, Unit.words)
    ids = {ids for word in words for ids in tokenizer.encode(word).ids}
    assert ids == set(range(len(SPECIALS), len(SPECIALS) + len(words)))


@pytest.mark.parametrize("special", SPECIALS)
def test_a_text_cannot_name_a_special_token(special):
    pairs = [("a", "x y"), ("b", f"x {special}")]
    source = build_tokenizer((s for s, _ in pairs), Unit.characters)
    target = build_tokenizer((t for _, t in pairs), Unit.words)
    with pytest.raises(InputError, match=f"'x {special}' has '{special}'"):
        refuse_specials(pairs, source, target)


def probabilities(model, batch):
    """(B, T, V) of the next token, in the floats that training uses."""
    inputs = batch.source_ids, batch.source_length, batch.target_ids, batch.target_length
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        return model(*inputs).float().exp().numpy()


def test_the_loss_is_the_cross_entropy_with_smoothed_targets():
    torch.manual_seed(0)
    model = Transformer(CONFIG).eval()
    batch = collate([Example([4, 5], [6]), Example([4], [7, 8])], CONFIG)
    losses = [
        -(0.8 * np.log(row[token]) + 0.2 * np.log(row).mean())
        for rows, tokens in zip(probabilities(model, batch), ([6, 2], [7, 8, 2]), strict=True)
        for row, token in zip(rows, tokens, strict=False)  # a row more where it is padded
    ]
    with torch.no_grad():
        found = float(loss_of(model, batch, label_smoothing=0.2))
    assert found == pytest.approx(np.mean(losses), rel=2e-3)


@pytest.mark.parametrize(("share", "batches"), [(0.0, 3), (0.5, 2), (1.0, 1)])
def test_an_epoch_joins_its_share_of_the_examples(share, batches):
    model = Transformer(CONFIG)
    optimizer = torch.optim.AdamW(model.parameters())
    options = replace(OPTIONS, joined=share)
    losses = train_epoch(model, optimizer, [Example([4], [5])] * 12, 0, options)
    assert len([*losses]) == batches  # of 12, 8 and 4 examples


def test_the_rate_warms_up_then_falls_along_a_cosine():
    assert learning_rate(0.025, OPTIONS) == pytest.approx(0.5e-2)
    assert learning_rate(0.05, OPTIONS) == pytest.approx(1e-2)
    assert learning_rate(0.525, OPTIONS) == pytest.approx(0.5e-2)
    assert learning_rate(1.0, OPTIONS) == pytest.approx(0)


def copying_run(folder, config=CONFIG):
    """Sources of letters, targets that spell them: something a small model can learn."""
    words = ["ab", "abc", "cab", "bad", "dab", "cad", "ad", "a", "b", "c", "d", "deb", "ed", "be"]
    pairs = [(word, " ".join(word)) for word in words]
    folder.mkdir(exist_ok=True)
    path = folder / "pairs.tsv"
    path.write_text("".join(f"{source}\t{target}\n" for source, target in pairs))
    source = build_tokenizer((s for s, _ in pairs), Unit.characters)
    target = build_tokenizer((t for _, t in pairs), Unit.words)
    create_run(folder / "run", config, source, target)
    return folder / "run", path, pairs


def test_a_run_that_was_stopped_goes_on_as_if_it_had_not_been(tmp_path, monkeypatch):
    whole, pairs, _ = copying_run(tmp_path / "whole")
    train(whole, pairs, pairs, OPTIONS)
    stopped, pairs, _ = copying_run(tmp_path / "stopped")
    with stopped_after(2, "model.training.loop.mean_loss", monkeypatch):
        train(stopped, pairs, pairs, OPTIONS)
    train(stopped, pairs, pairs, OPTIONS)
    assert (whole / WEIGHTS).read_bytes() == (stopped / WEIGHTS).read_bytes()
    assert (whole / LOSSES).read_text() == (stopped / LOSSES).read_text()
    assert len((whole / LOSSES).read_text().splitlines()) == OPTIONS.epochs


def test_an_epoch_that_was_not_kept_leaves_no_loss(tmp_path, monkeypatch):
    run, pairs, _ = copying_run(tmp_path)
    for calls in (0, 1):
        with stopped_after(calls, "torch.save", monkeypatch):
            train(run, pairs, pairs, OPTIONS)
    train(run, pairs, pairs, OPTIONS)
    epochs = [line.split("\t")[0] for line in (run / LOSSES).read_text().splitlines()]
    assert epochs == ["1", "2", "3", "4"]


@contextmanager
def stopped_after(calls, name, monkeypatch):
    """What runs within is interrupted where it calls the function of that name once more."""
    function, left = resolve_name(name), iter(range(calls))

    def call_or_stop(*arguments):
        if next(left, None) is None:
            raise KeyboardInterrupt
        return function(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(name, call_or_stop)
        with pytest.raises(KeyboardInterrupt):
            yield


def test_a_run_holds_the_mean_of_its_last_epochs_and_its_last_loss_on_the_dev_pairs(tmp_path):
    run, pairs, _ = copying_run(tmp_path, replace(CONFIG, dropout=0.5))
    dev = tmp_path / "dev.tsv"
    dev.write_text("cab\td d\nbe\ta\n")
    train(run, pairs, dev, OPTIONS)
    kept = [load_file(path) for path in sorted(run.glob("epoch-*.safetensors"))]
    assert len(kept) == OPTIONS.average
    for name, found in load_file(run / WEIGHTS).items():
        expected = np.mean([state[name] for state in kept], axis=0)
        np.testing.assert_allclose(found, expected, atol=1e-6)

    model = Transformer(load_config(run)).eval()
    model.load_state_dict({name: torch.from_numpy(x) for name, x in kept[-1].items()})
    examples = encode_pairs(read_pairs(dev), *load_tokenizers(run), load_config(run))
    losses = [
        -math.log(row[token])
        for example in examples
        for row, token in zip(
            probabilities(model, collate([example], CONFIG))[0],
            [*example.target_ids, CONFIG.eos_id],
            strict=True,
        )
    ]
    last = (run / LOSSES).read_text().splitlines()[-1]
    assert float(last.split("\t")[2]) == pytest.approx(np.mean(losses), abs=5e-3)


def test_a_trained_run_stays_as_it_is(tmp_path):
    run, pairs, _ = copying_run(tmp_path)
    train(run, pairs, pairs, OPTIONS)
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    train(run, pairs, pairs, OPTIONS)
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before


@pytest.mark.parametrize(
    "config", [CONFIG, replace(CONFIG, d_model=35, num_heads=5, d_qk=7, d_v=7)]
)
def test_training_learns_and_the_model_comes_back_from_disk(tmp_path, config):
    run, path, pairs = copying_run(tmp_path, config)
    train(run, path, path, replace(OPTIONS, epochs=150, average=3))
    predictions = predict(load_model(run), [source for source, _ in pairs], beam_size=1)
    rates = error_rates(dict(zip(dict(pairs), predictions, strict=True)), pairs, stress=True)
    assert rates.word == 0


def test_the_average_is_the_mean_of_the_checkpoints(tmp_path):
    paths = [tmp_path / f"{value}.safetensors" for value in (1, 2, 6)]
    for path, value in zip(paths, (1.0, 2.0, 6.0), strict=True):
        save_weights(path, {"w": torch.tensor([value])})
    assert average_weights(paths)["w"].tolist() == [3.0]
