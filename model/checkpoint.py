"""Save a training run's model, and load a model from a run or a bundle."""

import json
import pickle
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor

from model.network.config import InputError, TransformerConfig
from model.network.transformer import Transformer
from model.usage import Usage

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
TOKENIZERS = ("source.tokenizer.json", "target.tokenizer.json")
EXAMPLES = "examples.json"
NUM_EXAMPLES = 3
LONGEST_KEPT = 200  # characters: the page opens on an example
DAMAGED = (  # what torch.load raises for a file that is damaged or holds something else
    ArithmeticError,
    AssertionError,
    AttributeError,
    EOFError,
    LookupError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
    pickle.UnpicklingError,
    struct.error,
)
RENEW = "copy it again, or train or export again"


@dataclass(frozen=True, slots=True)
class TrainedModel:
    """A network with the tokenizers of its two sides. Without a `usage` it was trained here.

    int8 and fp16 are measured on `pairs`, the ids that the encoder and the decoder read. Without
    pairs, they are measured on random sources and what the network decodes from them.
    """

    transformer: Transformer
    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer
    usage: Usage | None = None
    pairs: Sequence[tuple[list[int], list[int]]] = ()


def create_run(run: Path, config: TransformerConfig, source: Tokenizer, target: Tokenizer) -> None:
    """Write what is fixed before the first epoch: the tokenizers and the network's shape."""
    run.mkdir(parents=True, exist_ok=True)
    for name, tokenizer in zip(TOKENIZERS, (source, target), strict=True):
        tokenizer.save(str(run / name))
    (run / CONFIG).write_text(json.dumps(asdict(config), indent=2) + "\n")


def save_examples(run: Path, sources: Sequence[str]) -> None:
    """Write some training sources, evenly spaced, for a bundle that is given no examples."""
    short = [*dict.fromkeys(text for text in sources if len(text) <= LONGEST_KEPT)]
    places = {(2 * i + 1) * len(short) // (2 * NUM_EXAMPLES) for i in range(NUM_EXAMPLES)}
    chosen = [short[place] for place in sorted(places)] if short else []
    (run / EXAMPLES).write_text(json.dumps(chosen, ensure_ascii=False) + "\n", encoding="utf-8")


def examples_of(run: Path) -> list[str]:
    """Return the examples of a run; none of a bundle, or of a run that has not begun."""
    path = run / EXAMPLES
    found = decode_json(path.read_bytes(), path) if path.exists() else []
    if not isinstance(found, list) or not all(isinstance(text, str) for text in found):
        raise InputError(f"{path} must be a JSON list of texts: remove it, or train again")
    return cast("list[str]", found)


def load_tokenizers(path: Path) -> tuple[Tokenizer, Tokenizer]:
    """Return the source and target tokenizers of a run or bundle."""
    source, target = (load_tokenizer(path / name) for name in TOKENIZERS)
    return source, target


def load_tokenizer(path: Path) -> Tokenizer:
    """Raise InputError if the file is missing or damaged."""
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises no other class
        raise InputError(f"{path} cannot be read: {error}: {RENEW}") from error


def load_config(path: Path) -> TransformerConfig:
    """Return the network's shape from a run's config.json or a bundle's bundle.json. Raise
    InputError if both are missing, or the file is of another library, or damaged."""
    own = path / CONFIG
    file = own if own.exists() else path / "bundle.json"
    if not file.is_file():
        raise InputError(f"{path} has neither {CONFIG} nor {file.name}: give a run or a bundle")
    held = parse_json(file.read_bytes(), file)
    try:
        return TransformerConfig(**(held if file == own else held["config"]))
    except (TypeError, KeyError) as error:
        raise InputError(
            f"{file} does not describe a network of Heed's: give a training run or a bundle;"
            " `heed convert` makes a bundle of another library's checkpoint"
        ) from error


def parse_json(content: bytes, path: Path) -> dict[str, Any]:
    """Return the object that a JSON file holds. Raise InputError if it holds something else."""
    found = decode_json(content, path)
    if not isinstance(found, dict):
        raise InputError(f"{path} must be a JSON object")
    return cast("dict[str, Any]", found)


def decode_json(content: bytes, path: Path) -> Any:
    try:
        return json.loads(content.decode())
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not JSON: {error}") from error


def find_weights(path: Path) -> Path:
    """Return the file of a run's averaged weights, or of a bundle's fp32 or else fp16 weights.

    Raise InputError if there is neither.
    """
    for weights in (path / WEIGHTS, path / "fp32" / WEIGHTS, path / "fp16" / WEIGHTS):
        if weights.is_file():
            return weights
    if (path / "int8" / WEIGHTS).is_file():
        raise InputError(
            f"{path} holds int8 weights only, which PyTorch cannot compute with: name the run that"
            " it was exported from, or a bundle exported with --precision fp32 or both"
        )
    raise InputError(f"{path} is neither a bundle nor a training run with a finished epoch")


def load_model(path: Path) -> TrainedModel:
    """Load a model in evaluation mode and float32.

    Raise InputError if a file is missing or damaged, or if `path` is a bundle of a converted
    checkpoint: its texts have ids around them that training and evaluation do not know.
    """
    manifest = path / "bundle.json"
    if manifest.is_file() and parse_json(manifest.read_bytes(), manifest).get("origin"):
        raise InputError(f"{path} was converted from a checkpoint: give a model that `train` made")
    weights = find_weights(path)
    config, state = load_config(path), load_weights(weights)
    try:
        transformer = Transformer(config)
        transformer.load_state_dict({name: tensor.float() for name, tensor in state.items()})
    except (RuntimeError, TypeError) as error:
        raise InputError(
            f"{weights} does not fit the network that {CONFIG} or bundle.json describes: {RENEW}"
        ) from error
    return TrainedModel(transformer.eval(), *load_tokenizers(path))


def load_weights(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file. Raise InputError if it is missing or damaged."""
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path} cannot be read: {error}: {RENEW}") from error


def save_weights(path: Path, state: Mapping[str, Tensor]) -> None:
    """Write tensors as safetensors, atomically."""
    replace_whole(path, lambda partial: save_file(dict(state), partial))


def replace_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file and put it in the place of `path` once it is complete.

    A process that is killed while it writes leaves the old file.
    """
    partial = path.with_suffix(".partial")
    write(partial)
    partial.replace(path)


def average_weights(paths: Sequence[Path]) -> dict[str, Tensor]:
    """Return the mean of the weights in several files (Vaswani et al. 2017, section 6.1)."""
    states = [load_weights(path) for path in paths]
    return {name: torch.stack([state[name] for state in states]).mean(0) for name in states[0]}
