"""Read config.json: the fields that every kind of checkpoint has, under one name or another."""

import math
from collections.abc import Mapping
from typing import Any, TypedDict, cast

from model.export.files.limits import LARGEST_SIZE, MOST_ENDS
from model.importers.checkpoint import GENERATION, Checkpoint
from model.network.config import Activation, InputError

ACTIVATION_NAMES = {
    "relu": Activation.relu,
    "gelu": Activation.gelu,
    "gelu_accurate": Activation.gelu_tanh,
    "gelu_fast": Activation.gelu_tanh,
    "gelu_new": Activation.gelu_tanh,
    "gelu_python": Activation.gelu,
    "gelu_python_tanh": Activation.gelu_tanh,
    "gelu_pytorch_tanh": Activation.gelu_tanh,
    "silu": Activation.silu,
    "swish": Activation.silu,
}
# Other names that transformers reads (its attribute_map). They count before the field's own name.
RENAMED = {
    "d_model": "hidden_size",
    "d_kv": "head_dim",
    "num_heads": "num_attention_heads",
    "num_layers": "num_hidden_layers",
    "encoder_attention_heads": "num_attention_heads",
    "encoder_layers": "num_hidden_layers",
}
CONFIG = "config.json"


def named(checkpoint: Checkpoint, name: str) -> str:
    """Return the name under which config.json has a field."""
    other = RENAMED.get(name, name)
    return name if checkpoint.config.get(other) is None else other


def number(checkpoint: Checkpoint, name: str, default: int | None = None) -> int:
    """Return a size, from 1. Raise InputError if it is missing without a default, or not a size."""
    name = named(checkpoint, name)
    value = checkpoint.config.get(name)
    value = default if value is None else value
    if type(value) is not int or not 1 <= value <= LARGEST_SIZE:
        raise unsupported(checkpoint, name, f"a whole number from 1 to {LARGEST_SIZE}")
    return value


def epsilon(checkpoint: Checkpoint, name: str, default: float) -> float:
    """Return the number that a norm adds. Raise InputError if it is not between 0 and 1."""
    value = checkpoint.config.get(name)
    value = default if value is None else value
    if type(value) not in (int, float) or not 0 < value < 1:
        raise unsupported(checkpoint, name, "a number between 0 and 1")
    return float(value)


def flag(checkpoint: Checkpoint, name: str, default: bool) -> bool:
    value = checkpoint.config.get(name)
    value = default if value is None else value
    if type(value) is not bool:
        raise unsupported(checkpoint, name, "true or false")
    return value


def common(checkpoint: Checkpoint, *names: str) -> int:
    """Return the number that these fields share. Raise InputError if they differ: our network has
    one number for both sides."""
    values = {named(checkpoint, name): number(checkpoint, name) for name in names}
    if len({*values.values()}) > 1:
        pairs = " and ".join(f"{name} {value}" for name, value in values.items())
        raise InputError(
            f"{checkpoint.folder}: config.json has {pairs}: Heed has one number for both,"
            " so this model cannot be converted"
        )
    return next(iter(values.values()))


def activation(checkpoint: Checkpoint, name: str, value: object) -> Activation:
    if not isinstance(value, str) or value not in ACTIVATION_NAMES:
        raise unsupported(checkpoint, name, f"one of {', '.join(ACTIVATION_NAMES)}")
    return ACTIVATION_NAMES[value]


def id_of(checkpoint: Checkpoint, file: str, name: str, below: float = math.inf) -> int:
    """Return an id that a file has. A list of one id stands for it. Raise InputError if it is not
    one id `below` this size."""
    value = contents(checkpoint, file).get(name)
    ids = cast("list[Any]", value) if isinstance(value, list) else [value]
    if len(ids) != 1 or type(ids[0]) is not int or ids[0] < 0:
        raise InputError(
            f"{checkpoint.folder}: {file} has {name} {value!r}; expected one id, as a number or a"
            f" list of one, in {GENERATION} or {CONFIG}"
        )
    if ids[0] >= below:
        raise InputError(
            f"{checkpoint.folder}: {file} has {name} {value!r}; expected an id below {below}, the"
            " size of the vocabulary: the files belong to two models"
        )
    return ids[0]


def eos_ids(checkpoint: Checkpoint, below: float = math.inf) -> list[int]:
    """Return the ids that end a target, of generation_config.json, or else of config.json.

    If there are several, that of config.json comes first, or else the first. Raise InputError for
    none, for more than MOST_ENDS, and for an id that is not `below` the size of the vocabulary.
    """
    name, file = "eos_token_id", GENERATION
    if contents(checkpoint, file).get(name) is None:
        file = CONFIG
    value = contents(checkpoint, file).get(name)
    if not isinstance(value, list):
        return [id_of(checkpoint, file, name, below)]
    given = cast("list[Any]", value)
    are_ids = all(type(each) is int and each >= 0 for each in given)
    if not are_ids or not 1 <= len({*given}) <= MOST_ENDS:
        raise InputError(
            f"{checkpoint.folder}: {file} has {name} {value!r}; expected 1 to {MOST_ENDS} ids"
        )
    if max(given) >= below:
        raise InputError(
            f"{checkpoint.folder}: {file} has {name} {value!r}; expected ids below {below}, the"
            " size of the vocabulary: the files belong to two models"
        )
    first = checkpoint.config.get(name)
    return sorted(dict.fromkeys(given), key=lambda each: each != first)


def contents(checkpoint: Checkpoint, file: str) -> dict[str, Any]:
    return checkpoint.config if file == CONFIG else checkpoint.optional_json(file)


class SpecialIds(TypedDict):
    pad_id: int
    bos_id: int  # the first id that the decoder reads
    eos_id: int


def special_ids(checkpoint: Checkpoint, vocab_size: int) -> SpecialIds:
    # config.json's pad comes first: the network of M2M100 counts its positions from it
    file = CONFIG if checkpoint.config.get("pad_token_id") is not None else GENERATION
    return {
        "pad_id": id_of(checkpoint, file, "pad_token_id", vocab_size),
        "bos_id": start_id(checkpoint, vocab_size),
        "eos_id": eos_ids(checkpoint, vocab_size)[0],
    }


def start_id(checkpoint: Checkpoint, below: float = math.inf) -> int:
    """Return the first id that the decoder reads: as in `generate`, bos if there is no other.
    That of generation_config.json comes before that of config.json."""
    names = ("decoder_start_token_id", "bos_token_id")
    for file in (GENERATION, CONFIG):
        for name in names:
            if contents(checkpoint, file).get(name) is not None:
                return id_of(checkpoint, file, name, below)
    return id_of(checkpoint, CONFIG, names[0], below)


def architectures(config: Mapping[str, Any], place: str) -> list[str]:
    """Return the names of the classes that wrote the checkpoint in this place."""
    found = config.get("architectures")
    found = [] if found is None else found
    if not isinstance(found, list) or not all(
        isinstance(each, str) for each in cast("list[Any]", found)
    ):
        raise InputError(f"{place}: {CONFIG} has architectures {found!r}; expected a list of names")
    return cast("list[str]", found)


def check_architecture(config: Mapping[str, Any], place: str) -> None:
    """Raise InputError for a checkpoint with another head, or with quantised weights."""
    for name in architectures(config, place):
        if not name.endswith(("ForConditionalGeneration", "MTModel", "LMHeadModel")):
            raise InputError(
                f"{place}: {CONFIG} has architectures {name}: Heed serves models that generate,"
                " such as ...ForConditionalGeneration"
            )
    if config.get("quantization_config"):
        raise InputError(
            f"{place}: {CONFIG} has a quantization_config: give the checkpoint from before"
            " quantisation"
        )


def unsupported(checkpoint: Checkpoint, name: str, expected: str) -> InputError:
    value = checkpoint.config.get(name)
    return InputError(f"{checkpoint.folder}: config.json has {name} {value!r}; expected {expected}")
