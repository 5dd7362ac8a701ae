"""Read heed.toml, which says what the state dict of a model of your own cannot say."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from model.importers.checkpoint import OWN, Checkpoint
from model.importers.files.names import ANY
from model.network.config import Activation, InputError

SINUSOIDAL, SQRT = "sinusoidal", "sqrt"
UNITS = WORDS, LETTERS = "words", "letters"
TENSORS = (  # keys whose values are names of tensors
    "transformer",
    "source_embedding",
    "target_embedding",
    "output",
    "output_bias",
    "ignore",
    "positions",
    "names",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """The keys of heed.toml with their defaults filled in; docs/checkpoints.md explains each.

    Names of tensors are complete. `positions` names the table of the source and of the target.
    """

    path: Path
    kind: str
    weights: str
    state: str
    names: dict[str, str]
    transformer: str
    source_embedding: str
    target_embedding: str
    output: str
    output_bias: str
    ignore: list[str]
    positions: tuple[str, str]
    embedding_scale: float | str
    num_heads: int
    activation: str
    norm_first: bool
    norm_epsilon: float
    max_source_length: int
    max_target_length: int
    pad_id: int
    start_id: int
    eos_id: int
    source_prefix_ids: list[int]
    source_suffix_ids: list[int]
    source_vocabulary: str
    target_vocabulary: str
    unit: tuple[str, str]
    unknown_token: str
    texts: str

    def tensors(self) -> set[str]:
        """Return the tensors that are not of a layer."""
        embeddings = self.source_embedding, self.target_embedding
        return {*embeddings, self.output, self.output_bias, *self.positions}


@dataclass(frozen=True, slots=True)
class Rule:
    """The values that a key may have: in words for errors, and as a test."""

    expected: str
    holds: Callable[[Any], bool]


def is_name(value: Any) -> bool:
    return isinstance(value, str) and value != ""


def is_whole(value: Any) -> bool:
    return type(value) is int and value >= 0  # no bool


def is_positive(value: Any) -> bool:
    return type(value) in (int, float) and 0 < value < math.inf


def is_list(value: Any, holds: Callable[[Any], bool]) -> bool:
    return isinstance(value, list) and all(map(holds, cast("list[Any]", value)))


def is_positions(value: Any) -> bool:
    return is_name(value) or (is_list(value, is_name) and len(value) == 2)


def is_unit(value: Any) -> bool:
    both: list[Any] = cast("list[Any]", value) if isinstance(value, list) else [value] * 2
    return len(both) == 2 and all(each in UNITS for each in both)


def is_names(value: Any) -> bool:
    return isinstance(value, dict) and all(
        is_name(target) and target.count(ANY) == pattern.count(ANY)
        for pattern, target in cast("dict[str, Any]", value).items()
    )


def is_file_name(value: Any) -> bool:
    return is_name(value) and Path(value).name == value


TENSOR = Rule("the name of a tensor", is_name)
ID = Rule("an id, such as 1", is_whole)
IDS = Rule("a list of ids, such as [2] or []", lambda value: is_list(value, is_whole))
COUNT = Rule("a whole number", is_whole)
FILE = Rule("the name of a file in this folder", is_file_name)
RULES = {
    "weights": FILE,
    "state": Rule("the entry of the weights file that is the state dict", is_name),
    "transformer": Rule(
        'the start of its tensors\' names, such as "transformer."',
        lambda value: isinstance(value, str),
    ),
    "names": Rule(
        "a table at the end of the file: patterns of the tensors' names, in quotes, and names of"
        ' torch with as many stars, such as "enc.*.q.*" = "encoder.layers.*.self_attn.q_proj.*"',
        is_names,
    ),
    "source_embedding": TENSOR,
    "target_embedding": TENSOR,
    "output": TENSOR,
    "output_bias": TENSOR,
    "ignore": Rule(
        "a list of names of tensors, or of patterns with stars",
        lambda value: is_list(value, is_name),
    ),
    "positions": Rule(
        f'"{SINUSOIDAL}", the name of a tensor, or a list of two: for source and target',
        is_positions,
    ),
    "embedding_scale": Rule(
        f'"{SQRT}", or a number above 0, such as 1',
        lambda value: value == SQRT or is_positive(value),
    ),
    "num_heads": COUNT,
    "activation": Rule(f"one of {', '.join(Activation)}", lambda value: value in list(Activation)),
    "norm_first": Rule("true or false", lambda value: isinstance(value, bool)),
    "norm_epsilon": Rule("a number above 0, such as 1e-5", is_positive),
    "max_source_length": COUNT,
    "max_target_length": COUNT,
    "pad_id": ID,
    "start_id": ID,
    "eos_id": ID,
    "source_prefix_ids": IDS,
    "source_suffix_ids": IDS,
    "source_vocabulary": FILE,
    "target_vocabulary": FILE,
    "unit": Rule(
        f"one of {', '.join(UNITS)}, or a list of two: for source and target",
        is_unit,
    ),
    "unknown_token": Rule("the token that stands for unknown words or letters", is_name),
    "texts": Rule("the name of a file in this folder, one text a line", is_file_name),
}
OPTIONAL: dict[str, Any] = {
    "weights": "",
    "state": "",
    "names": {},
    "output_bias": "",
    "ignore": [],
    "source_vocabulary": "",
    "target_vocabulary": "",
    "unit": WORDS,
    "unknown_token": "",
    "texts": "",
}
DEFAULTS: dict[str, dict[str, Any]] = {
    "torch": {  # those of torch.nn.Transformer
        "transformer": "transformer.",
        "activation": "relu",
        "norm_first": False,
        "norm_epsilon": 1e-5,
    },
    "annotated": {  # those of The Annotated Transformer; names follow `transformer`
        "transformer": "",
        "source_embedding": "src_embed.0.lut.weight",
        "target_embedding": "tgt_embed.0.lut.weight",
        "output": "generator.proj.weight",
        "positions": ["src_embed.1.pe", "tgt_embed.1.pe"],
        "embedding_scale": SQRT,
        "activation": "relu",
        "norm_first": True,
        "norm_epsilon": 1e-6,
    },
}
KINDS = tuple(DEFAULTS)


def read_description(checkpoint: Checkpoint) -> Description:
    """Raise InputError naming the first key that is missing, unknown, or has an invalid value."""
    path, given = checkpoint.folder / OWN, dict(checkpoint.config)
    kind = given.pop("kind", None)
    if kind not in KINDS:
        found = "lacks kind" if kind is None else f"has kind {kind!r}"
        raise InputError(f"{path} {found}: give one of {', '.join(KINDS)}")
    for key, value in given.items():
        if key not in RULES:
            raise InputError(
                f"{path} has {key}, which is not a key: the keys are {', '.join(RULES)}"
            )
        if not RULES[key].holds(value):
            raise InputError(f"{path} has {key} {value!r}: give {RULES[key].expected}")
    given |= {key: unwrapped(checkpoint, given[key]) for key in TENSORS if key in given}
    values = {**OPTIONAL, **default_values(kind, given), **given}
    if missing := [key for key in RULES if key not in values]:
        needs = "; ".join(f"{key}, {RULES[key].expected}" for key in missing)
        raise InputError(f"{path} lacks keys that a model of kind {kind!r} needs: {needs}")
    for key in ("positions", "unit"):
        one = values[key]
        values[key] = (one, one) if isinstance(one, str) else (*one,)
    values["output_bias"] = values["output_bias"] or bias_of(values["output"])
    return Description(path=path, kind=kind, **values)


def unwrapped(checkpoint: Checkpoint, value: Any) -> Any:
    """Return names of tensors without what wrappers add to them, as those of the checkpoint."""
    if isinstance(value, str):
        return checkpoint.unwrapped(value)
    if isinstance(value, list):
        return [unwrapped(checkpoint, each) for each in cast("list[Any]", value)]
    patterns = cast("dict[str, str]", value)
    return {checkpoint.unwrapped(pattern): target for pattern, target in patterns.items()}


def default_values(kind: str, given: dict[str, Any]) -> dict[str, Any]:
    """Return the defaults of a kind. Default names of tensors begin with the prefix `transformer`:
    the one in `given`, else that of the kind."""
    values = dict(DEFAULTS[kind])
    start = given.get("transformer", values["transformer"])
    for key in ("source_embedding", "target_embedding", "output"):
        if key in values:
            values[key] = start + values[key]
    if "positions" in values:
        values["positions"] = [start + name for name in values["positions"]]
    return values


def bias_of(weight: str) -> str:
    """Return the name of the bias of a weight; "" if the weight is not named so."""
    start, dot, last = weight.rpartition(".")
    return f"{start}{dot}bias" if last == "weight" else ""
