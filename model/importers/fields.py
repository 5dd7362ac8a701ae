"""Read config.json: the fields that every kind of checkpoint has, under one name or another."""

from typing import Any, TypedDict, cast

from model.importers.checkpoint import GENERATION, Checkpoint
from model.network.config import Activation, InputError

ACTIVATIONS = {
    "relu": Activation.relu,
    "gelu": Activation.gelu,
    "gelu_new": Activation.gelu_tanh,
    "gelu_fast": Activation.gelu_tanh,
    "gelu_pytorch_tanh": Activation.gelu_tanh,
    "silu": Activation.silu,
    "swish": Activation.silu,
}


def number(checkpoint: Checkpoint, name: str, default: int | None = None) -> int:
    """Return a whole number. Raise InputError if it is missing without a default, or no number."""
    value = checkpoint.config.get(name)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int):
        raise unsupported(checkpoint, name, "a whole number")
    return value


def common(checkpoint: Checkpoint, *names: str) -> int:
    """Return the number that these fields share. Raise InputError if they differ: our network has
    one number for both sides."""
    values = {name: number(checkpoint, name) for name in names}
    if len({*values.values()}) > 1:
        pairs = " and ".join(f"{name} {value}" for name, value in values.items())
        raise InputError(
            f"{checkpoint.folder}: config.json has {pairs}: Heed has one number for both,"
            " so this model cannot be converted"
        )
    return values[names[0]]


def activation(checkpoint: Checkpoint, name: str, value: str) -> Activation:
    if value not in ACTIVATIONS:
        raise unsupported(checkpoint, name, f"one of {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[value]


def special_id(checkpoint: Checkpoint, name: str) -> int:
    """Return an id that `generate` uses: that of generation_config.json, or else of config.json.

    A list of one id stands for it. Raise InputError for several, or if neither file has one.
    """
    value, file = checkpoint.optional_json(GENERATION).get(name), GENERATION
    if value is None:
        value, file = checkpoint.config.get(name), "config.json"
    ids = cast("list[Any]", value) if isinstance(value, list) else [value]
    if len(ids) != 1 or type(ids[0]) is not int or ids[0] < 0:
        raise InputError(
            f"{checkpoint.folder}: {file} has {name} {value!r}; expected one id, as a number or a"
            f" list of one, in {GENERATION} or config.json"
        )
    return ids[0]


class SpecialIds(TypedDict):
    pad_id: int
    bos_id: int  # the first id that the decoder reads
    eos_id: int


def special_ids(checkpoint: Checkpoint) -> SpecialIds:
    return {
        "pad_id": number(checkpoint, "pad_token_id"),
        "bos_id": special_id(checkpoint, "decoder_start_token_id"),
        "eos_id": special_id(checkpoint, "eos_token_id"),
    }


def check_architecture(checkpoint: Checkpoint) -> None:
    """Raise InputError for a checkpoint with another head, or with quantised weights."""
    config: dict[str, Any] = checkpoint.config
    for name in config.get("architectures") or []:
        if not str(name).endswith(("ForConditionalGeneration", "MTModel", "LMHeadModel")):
            raise InputError(
                f"{checkpoint.folder}: config.json has architectures {name}: Heed serves models"
                " that generate, such as ...ForConditionalGeneration"
            )
    if config.get("quantization_config"):
        raise InputError(
            f"{checkpoint.folder}: config.json has a quantization_config: give the checkpoint from"
            " before quantisation"
        )


def unsupported(checkpoint: Checkpoint, name: str, expected: str) -> InputError:
    value = checkpoint.config.get(name)
    return InputError(f"{checkpoint.folder}: config.json has {name} {value!r}; expected {expected}")
