"""How a model is used: the ids around a text, its languages, and its way of decoding."""

from dataclasses import dataclass, field
from typing import Any, Literal

from model.network.config import TransformerConfig

Slot = Literal["source_language", "target_language"]
Codes = dict[str, list[int]]  # ids of each language, by its code; [] where no slot needs them

GREEDY: dict[str, Any] = {  # the decoding options of greedy search
    "min_new_tokens": 0,
    "beam_size": 1,
    "length_penalty": 1.0,
    "early_stopping": True,
    "no_repeat_ngram_size": 0,
    "repetition_penalty": 1.0,
    "suppress_tokens": [],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """The part of bundle.json that is not about the network (docs/bundle.md).

    A slot is replaced by the ids of the language that a request names. `default_target` is that of
    targets if it names none.
    """

    decoder_start: list[int | Slot]
    max_new_tokens: int
    unknown_id: int | None
    source_prefix: list[int | Slot] = field(default_factory=list[int | Slot])
    source_suffix: list[int | Slot] = field(default_factory=list[int | Slot])
    source_languages: Codes = field(default_factory=dict[str, list[int]])
    target_languages: Codes = field(default_factory=dict[str, list[int]])
    default_target: str | None = None
    decoding: dict[str, Any] = field(default_factory=lambda: dict(GREEDY))
    compose: bool = False  # the service composes letters with their marks before it tokenizes
    origin: dict[str, Any] = field(default_factory=dict[str, Any])


def plain_usage(config: TransformerConfig, unknown_id: int | None) -> Usage:
    """Return the usage of a model that `train` makes: no ids around a source, bos before a target,
    greedy search."""
    return Usage(
        decoder_start=[config.bos_id],
        max_new_tokens=config.max_target_length,
        unknown_id=unknown_id,
    )
