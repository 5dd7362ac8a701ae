"""Limits of bundle.json, found before a bundle is written.

The service checks the same when it opens one (service/bundle/manifest.py).
tests/model/export/test_limits.py compares them.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from model.network.config import TransformerConfig
from model.usage import Codes, Slot, Usage

RANGES: dict[str, tuple[float, float]] = {  # of search options
    "beam_size": (1, 64),
    "length_penalty": (-10, 10),
    "no_repeat_ngram_size": (0, 64),
    "repetition_penalty": (0.01, 100),
    "encoder_no_repeat_ngram_size": (0, 64),
    "encoder_repetition_penalty": (0.01, 100),
}
# Options that compare a target with its source, and the values at which they change nothing
OF_SOURCE = {"encoder_no_repeat_ngram_size": 0, "encoder_repetition_penalty": 1}
MOST_SUPPRESSED = 1 << 16  # ids and sequences in suppress_tokens
LONGEST_SUPPRESSED = 64  # ids of a sequence
MOST_ENDS = 16  # ids besides eos that end a target
MOST_LAYERS = 1000
LARGEST_SIZE = (1 << 31) - 1
SIZES = (
    *("source_vocab_size", "target_vocab_size", "max_source_length", "max_target_length"),
    *("d_model", "d_ff", "num_heads", "d_qk", "d_v"),
)
Template = Sequence[int | Slot]


class Fault(NamedTuple):
    """A key of bundle.json whose value no bundle may hold, and what is expected."""

    key: str
    value: object
    expected: str


def find_faults(config: TransformerConfig, usage: Usage) -> Iterator[Fault]:
    """Yield what the service would refuse."""
    for name in SIZES:
        yield from beyond(name, getattr(config, name), 1, LARGEST_SIZE)
    for name in ("num_encoder_layers", "num_decoder_layers"):
        yield from beyond(name, getattr(config, name), 1, MOST_LAYERS)
    yield from find_faults_of_ids(config, usage)
    yield from find_faults_of_options(config, usage)


def find_faults_of_ids(config: TransformerConfig, usage: Usage) -> Iterator[Fault]:
    source, target = config.source_vocab_size, config.target_vocab_size
    if usage.unknown_id is not None:
        yield from beyond("unknown_id", usage.unknown_id, 0, min(source, target) - 1)
    for code, ids in [*usage.source_languages.items(), *usage.target_languages.items()]:
        if min(ids, default=0) < 0:
            yield Fault(f"the language {code}", ids, "no id below 0")
    yield from find_faults_of_suppressed(usage.decoding["suppress_tokens"], target)
    if len(usage.other_eos_ids) > MOST_ENDS:
        yield Fault("other_eos_ids", f"{len(usage.other_eos_ids)} ids", f"at most {MOST_ENDS}")
    if "source_language" in usage.decoder_start:
        yield Fault("decoder_start", usage.decoder_start, "no language but the target's")
    templates: dict[str, tuple[Template, int]] = {
        "source_prefix": (usage.source_prefix, source),
        "source_suffix": (usage.source_suffix, source),
        "decoder_start": (usage.decoder_start, target),
        "other_eos_ids": (usage.other_eos_ids, target),
    }
    for name, (template, size) in templates.items():
        for each in template:
            yield from find_faults_of_item(name, each, size, usage)


def find_faults_of_suppressed(suppressed: Sequence[int | list[int]], size: int) -> Iterator[Fault]:
    name = "suppress_tokens"
    if len(suppressed) > MOST_SUPPRESSED:
        yield Fault(name, f"{len(suppressed)} ids", f"at most {MOST_SUPPRESSED}")
    for each in suppressed:
        ids = [each] if isinstance(each, int) else each
        if not 1 <= len(ids) <= LONGEST_SUPPRESSED:
            yield Fault(name, f"{len(ids)} ids in a row", f"1 to {LONGEST_SUPPRESSED}")
        for token_id in ids:
            yield from beyond(name, token_id, 0, size - 1)


def find_faults_of_item(name: str, item: int | Slot, size: int, usage: Usage) -> Iterator[Fault]:
    """Yield what is wrong with an item of a template, for a vocabulary of this size."""
    choices = [[item]] if isinstance(item, int) else [*codes_of(usage, item).values()]
    if not choices:
        yield Fault(name, item, "an id, because there are no languages on that side")
    for ids in choices:
        if not ids:
            yield Fault(f"a language of {item}", ids, f"at least one id, for {name}")
        for token_id in ids:
            yield from beyond(name, token_id, 0, size - 1)


def find_faults_of_options(config: TransformerConfig, usage: Usage) -> Iterator[Fault]:
    for name, (least, most) in RANGES.items():
        yield from beyond(name, usage.decoding.get(name, OF_SOURCE.get(name)), least, most)
    for name, harmless in OF_SOURCE.items():
        value = usage.decoding.get(name, harmless)
        if value != harmless and config.source_vocab_size != config.target_vocab_size:
            yield Fault(name, value, f"{harmless}, because sources have another vocabulary")
    around = most_ids(usage, [*usage.source_prefix, *usage.source_suffix])
    if around >= config.max_source_length:
        limit = f"less than the {config.max_source_length} positions of a source"
        yield Fault("source_prefix and source_suffix", f"{around} ids", limit)
    longest = config.max_target_length + 1 - most_ids(usage, usage.decoder_start)
    if not usage.decoder_start or longest < 1:
        limit = f"1 to {config.max_target_length}, the positions of a target"
        yield Fault("decoder_start", f"{len(usage.decoder_start)} ids", limit)
    yield from beyond("max_new_tokens", usage.max_new_tokens, 1, max(1, longest))
    least = usage.decoding["min_new_tokens"]
    yield from beyond("min_new_tokens", least, 0, usage.max_new_tokens)


def beyond(name: str, value: float, least: float, most: float) -> Iterator[Fault]:
    if not least <= value <= most:  # true for NaN
        yield Fault(name, value, f"{least} to {most}")


def codes_of(usage: Usage, slot: Slot) -> Codes:
    return usage.source_languages if slot == "source_language" else usage.target_languages


def most_ids(usage: Usage, template: Template) -> int:
    """Return how many ids a template has in the languages that have most."""
    lengths = (
        1
        if isinstance(each, int)
        else max((len(ids) for ids in codes_of(usage, each).values()), default=0)
        for each in template
    )
    return sum(lengths)
