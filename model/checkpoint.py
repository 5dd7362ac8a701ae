"""What a training run leaves on disk, and how a model comes back from it or from a bundle."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor

from model.network.config import InputError, TransformerConfig
from model.network.transformer import Transformer

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
TOKENIZERS = ("source.tokenizer.json", "target.tokenizer.json")


@dataclass(frozen=True, slots=True)
class TrainedModel:
    transformer: Transformer
    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer


def create_run(run: Path, config: TransformerConfig, source: Tokenizer, target: Tokenizer) -> None:
    run.mkdir(parents=True, exist_ok=True)
    for name, tokenizer in zip(TOKENIZERS, (source, target), strict=True):
        tokenizer.save(str(run / name))
    (run / CONFIG).write_text(json.dumps(asdict(config), indent=2) + "\n")


def load_tokenizers(path: Path) -> tuple[Tokenizer, Tokenizer]:
    source, target = (Tokenizer.from_file(str(path / name)) for name in TOKENIZERS)
    return source, target


def load_config(path: Path) -> TransformerConfig:
    """From a run or, where there is none, from the bundle at `path`."""
    if (path / CONFIG).exists():
        return TransformerConfig(**json.loads((path / CONFIG).read_text()))
    return TransformerConfig(**json.loads((path / "bundle.json").read_text())["config"])


def find_weights(path: Path) -> Path:
    """A run's averaged weights, or those of a bundle's fp32 graphs. Raises InputError if `path`
    holds neither."""
    for weights in (path / WEIGHTS, path / "fp32" / WEIGHTS):
        if weights.is_file():
            return weights
    raise InputError(f"{path} is no bundle and no run with an epoch behind it")


def load_model(path: Path) -> TrainedModel:
    """Ready to use. Raises InputError if `path` is no bundle and no run with weights."""
    weights = find_weights(path)
    transformer = Transformer(load_config(path))
    state = load_file(weights)
    transformer.load_state_dict({name: tensor.float() for name, tensor in state.items()})
    return TrainedModel(transformer.eval(), *load_tokenizers(path))


def save_weights(path: Path, state: Mapping[str, Tensor]) -> None:
    replace_whole(path, lambda partial: save_file(dict(state), partial))


def replace_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Replaces `path` only once the new file is whole."""
    partial = path.with_suffix(".partial")
    write(partial)
    partial.replace(path)


def average_weights(paths: Sequence[Path]) -> dict[str, Tensor]:
    """The mean of several checkpoints (Vaswani et al. 2017, section 6.1)."""
    states = [load_file(path) for path in paths]
    return {name: torch.stack([state[name] for state in states]).mean(0) for name in states[0]}
