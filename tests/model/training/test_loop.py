import math
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from model.checkpoint import (
    WEIGHTS,
    average_weights,
    load_config,
    load_model,
    load_tokenizers,
    save_weights,
)
from model.data.pairs import Example, collate, encode_pairs, read_pair_file
from model.evaluate import error_rates, predict
from model.network.transformer import Transformer
from model.training.loop import batch_loss, learning_rate, train, train_epoch
from model.training.run import LOSSES
from tests.model.runs import CONFIG, OPTIONS, copying_run, stopped_after


def probabilities(model, batch):
    """(B, T, V) of the next token, in the precision of training."""
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
        for row, token in zip(rows, tokens, strict=False)  # a padded example has more rows
    ]
    with torch.no_grad():
        found = float(batch_loss(model, batch, label_smoothing=0.2))
    assert found == pytest.approx(np.mean(losses), rel=2e-3)


def test_a_loss_is_computed_on_the_device_of_the_model(monkeypatch):
    """Tensors on the CPU could not be combined with those of the device."""
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())  # it lacks this device
    model = Transformer(CONFIG).to("meta")
    soft_labels = torch.rand(2, CONFIG.target_vocab_size)
    for labels in (None, soft_labels):
        batch = collate([Example([4, 5], [6], labels)], CONFIG).to(model.device)
        assert batch_loss(model, batch, label_smoothing=0.1).is_meta


@pytest.mark.parametrize(("share", "batches"), [(0.0, 3), (0.5, 2), (1.0, 1)])
def test_an_epoch_concatenates_its_share_of_the_examples(share, batches):
    model = Transformer(CONFIG)
    optimizer = torch.optim.AdamW(model.parameters())
    options = replace(OPTIONS, concatenated=share)
    losses = train_epoch(model, optimizer, [Example([4], [5])] * 12, 0, options)
    assert len([*losses]) == batches  # of 12, 8 and 4 examples


def test_the_rate_warms_up_then_falls_along_a_cosine():
    assert learning_rate(0.025, OPTIONS) == pytest.approx(0.5e-2)
    assert learning_rate(0.05, OPTIONS) == pytest.approx(1e-2)
    assert learning_rate(0.525, OPTIONS) == pytest.approx(0.5e-2)
    assert learning_rate(1.0, OPTIONS) == pytest.approx(0)


def test_a_resumed_training_equals_one_without_interruption(tmp_path, monkeypatch):
    whole, pairs, _ = copying_run(tmp_path / "whole")
    train(whole, pairs, pairs, OPTIONS)
    stopped, pairs, _ = copying_run(tmp_path / "stopped")
    with stopped_after(2, "model.training.loop.mean_loss", monkeypatch):
        train(stopped, pairs, pairs, OPTIONS)
    train(stopped, pairs, pairs, OPTIONS)
    assert (whole / WEIGHTS).read_bytes() == (stopped / WEIGHTS).read_bytes()
    assert (whole / LOSSES).read_text() == (stopped / LOSSES).read_text()
    assert len((whole / LOSSES).read_text().splitlines()) == OPTIONS.epochs


def test_an_epoch_without_a_checkpoint_leaves_no_loss(tmp_path, monkeypatch):
    run, pairs, _ = copying_run(tmp_path)
    for calls in (0, 1):
        with stopped_after(calls, "torch.save", monkeypatch):
            train(run, pairs, pairs, OPTIONS)
    train(run, pairs, pairs, OPTIONS)
    epochs = [line.split("\t")[0] for line in (run / LOSSES).read_text().splitlines()]
    assert epochs == ["1", "2", "3", "4"]


def test_a_run_keeps_the_mean_of_its_last_epochs_and_the_loss_on_the_dev_pairs(tmp_path):
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
    examples = encode_pairs(read_pair_file(dev), *load_tokenizers(run), load_config(run))
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


def test_training_a_finished_run_again_changes_nothing(tmp_path):
    run, pairs, _ = copying_run(tmp_path)
    train(run, pairs, pairs, OPTIONS)
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    train(run, pairs, pairs, OPTIONS)
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before


@pytest.mark.parametrize(
    "config",
    [
        CONFIG,
        replace(CONFIG, d_model=35, num_heads=5, d_qk=7, d_v=7),
        replace(CONFIG, d_model=32, decoder="ssru"),
    ],
)
def test_training_learns_and_the_model_loads_from_disk(tmp_path, config):
    run, path, pairs = copying_run(tmp_path, config)
    train(run, path, path, replace(OPTIONS, epochs=75, average=3))
    predictions = predict(load_model(run), [source for source, _ in pairs], beam_size=1)
    rates = error_rates(dict(zip(dict(pairs), predictions, strict=True)), pairs, stress=True)
    assert rates.word == 0


def test_the_average_is_the_mean_of_the_checkpoints(tmp_path):
    paths = [tmp_path / f"{value}.safetensors" for value in (1, 2, 6)]
    for path, value in zip(paths, (1.0, 2.0, 6.0), strict=True):
        save_weights(path, {"w": torch.tensor([value])})
    assert average_weights(paths)["w"].tolist() == [3.0]
