"""How a model is used: the ids around a text, its languages, and its way of decoding."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from model.network.config import TransformerConfig

Slot = Literal["source_language", "target_language"]
Codes = dict[str, list[int]]  # ids of each language, by its code; [] where no slot needs them
Fill = Callable[[Sequence[int | Slot]], list[int]]

FIRST = {  # languages to prefer, by the words before the first _ of their codes
    "source_language": ("en", "eng"),
    "target_language": ("fr", "fra"),
}
GUIDED = "transformer-align"  # in the names of files that OPUS-MT trained with guided alignment
GREEDY: dict[str, Any] = {  # the decoding options of greedy search
    "min_new_tokens": 0,
    "beam_size": 1,
    "length_penalty": 1.0,
    "early_stopping": True,
    "no_repeat_ngram_size": 0,
    "repetition_penalty": 1.0,
    "suppress_tokens": [],
}


@dataclass(frozen=True, slots=True, eq=False)
class Shortlists:
    """The tokens that targets may have: `always`, and those of each token s of the source,
    tokens[offsets[s]] to tokens[offsets[s + 1] - 1]."""

    offsets: NDArray[np.int64]  # (source vocabulary + 1,)
    tokens: NDArray[np.int64]  # (N,)
    always: NDArray[np.int64]

    def of(self, source: Sequence[int]) -> set[int]:
        lists = (self.tokens[self.offsets[each] : self.offsets[each + 1]] for each in source)
        return {*self.always.tolist()}.union(*(each.tolist() for each in lists))


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """The part of bundle.json that is not about the network (docs/bundle.md).

    A slot is replaced by the ids of the language that a request names. `default_target` is that of
    targets if it names none. `other_eos_ids` end targets as the network's own eos does. `guided`
    are the layer and the head of cross-attention that training guided to alignments: then this one
    is the bundle's alignment. If it is not known for sure, it is only if it agrees with occlusion
    about as often as the best one. `target_lists` are the tokens, ascending, that targets in a
    language may have, by its code; other languages have all.
    """

    decoder_start: list[int | Slot]
    max_new_tokens: int
    unknown_id: int | None
    source_prefix: list[int | Slot] = field(default_factory=list[int | Slot])
    source_suffix: list[int | Slot] = field(default_factory=list[int | Slot])
    source_languages: Codes = field(default_factory=dict[str, list[int]])
    target_languages: Codes = field(default_factory=dict[str, list[int]])
    default_target: str | None = None
    other_eos_ids: list[int] = field(default_factory=list[int])
    decoding: dict[str, Any] = field(default_factory=lambda: dict(GREEDY))
    compose: bool = False  # the service composes letters with their marks before it tokenizes
    origin: dict[str, Any] = field(default_factory=dict[str, Any])
    guided: tuple[int, int] | None = None
    surely_guided: bool = True
    shortlists: Shortlists | None = None
    target_lists: dict[str, NDArray[np.int64]] = field(default_factory=dict[str, Any])


def plain_usage(config: TransformerConfig, unknown_id: int | None) -> Usage:
    """Return the usage of a model that `train` makes: no ids around a source, bos before a target,
    greedy search."""
    return Usage(
        decoder_start=[config.bos_id],
        max_new_tokens=config.max_target_length,
        unknown_id=unknown_id,
    )


def filler(usage: Usage) -> Fill:
    """Return a function that puts ids into the slots of a template: those of the default language,
    or of one that has built-in sentences."""
    default = usage.default_target
    languages: dict[Slot, list[int]] = {
        "source_language": preferred("source_language", usage.source_languages),
        "target_language": usage.target_languages[default]
        if default is not None
        else preferred("target_language", usage.target_languages),
    }
    return partial(fill, languages=languages)


def fill(template: Sequence[int | Slot], languages: Mapping[Slot, list[int]]) -> list[int]:
    """Return the ids of a template. A slot that is not in `languages` adds none."""
    parts = ([each] if isinstance(each, int) else languages.get(each, []) for each in template)
    return [i for part in parts for i in part]


def preferred(slot: Slot, codes: Codes) -> list[int]:
    chosen = [code for code in codes if code.partition("_")[0] in FIRST[slot]]
    return codes[(chosen or [*codes])[0]] if codes else []
