"""Runs that tests train, interrupt and learn from."""

import random
from contextlib import contextmanager
from dataclasses import replace
from pkgutil import resolve_name

import pytest
import torch
from typer.testing import CliRunner

from model.__main__ import app
from model.checkpoint import WEIGHTS, create_run, save_weights
from model.data.tokenizers import Unit, build_tokenizer
from model.network.config import TransformerConfig
from model.network.transformer import Transformer
from model.training.run import TrainingOptions

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
TEACHER = replace(CONFIG, d_qk=8, d_v=8, dropout=0.0)
OPTIONS = TrainingOptions(
    epochs=4,
    batch_size=4,
    learning_rate=1e-2,
    warmup=0.05,
    weight_decay=0.02,
    label_smoothing=0.1,
    concatenated=0.3,
    average=2,
    seed=0,
    pairs_sha256="",
    start=None,
    teachers=[],
    synthetic_sources=0.0,
)


def copying_run(folder, config=CONFIG):
    """A run whose targets spell their sources: a task that a small model can learn."""
    words = ["ab", "abc", "cab", "bad", "dab", "cad", "ad", "a", "b", "c", "d", "deb", "ed", "be"]
    pairs = [(word, " ".join(word)) for word in words]
    folder.mkdir(exist_ok=True)
    path = folder / "pairs.tsv"
    path.write_text("".join(f"{source}\t{target}\n" for source, target in pairs))
    source = build_tokenizer((s for s, _ in pairs), Unit.characters)
    target = build_tokenizer((t for _, t in pairs), Unit.words)
    create_run(folder / "run", config, source, target)
    return folder / "run", path, pairs


@contextmanager
def stopped_after(calls, name, monkeypatch):
    """Interrupt the body when it calls the function of that name after `calls` calls."""
    function, left = resolve_name(name), iter(range(calls))

    def call_or_stop(*arguments):
        if next(left, None) is None:
            raise KeyboardInterrupt
        return function(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(name, call_or_stop)
        with pytest.raises(KeyboardInterrupt):
            yield


def untrained(seed, config):
    """A model whose outputs reach eos now and then."""
    torch.manual_seed(seed)
    model = Transformer(config).eval()
    model.generator.bias.data[config.eos_id] = 1.5
    return model


def teacher_run(folder, seed, alphabet="abc", **changes):
    """A run with an untrained model, and pairs of words and their letters."""
    letters = random.Random(0)
    words = ["".join(letters.choices(alphabet, k=4 + i % 3)) for i in range(60)]
    pairs = [(word, " ".join(word)) for word in words]
    folder.mkdir()
    path = folder / "pairs.tsv"
    path.write_text("".join(f"{source}\t{target}\n" for source, target in pairs))
    source = build_tokenizer((s for s, _ in pairs), Unit.characters)
    target = build_tokenizer((t for _, t in pairs), Unit.words)
    config = replace(
        TEACHER,
        source_vocab_size=source.get_vocab_size(),
        target_vocab_size=target.get_vocab_size(),
        **changes,
    )
    create_run(folder / "run", config, source, target)
    save_weights(folder / "run" / WEIGHTS, untrained(seed, config).state_dict())
    return folder / "run", path


def small_command(*arguments):
    shape = "--d-model 16 --d-ff 32 --num-heads 2 --num-encoder-layers 1 --num-decoder-layers 1"
    return CliRunner().invoke(app, [str(each) for each in ("train", *arguments, *shape.split())])
