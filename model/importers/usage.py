"""Read how a checkpoint is used: the ids around its texts, its languages, how it decodes."""

from dataclasses import dataclass
from typing import Any

from model.importers.checkpoint import OWN, Checkpoint
from model.importers.decoding import Generation, check_limits
from model.importers.description import read_description
from model.importers.fields import CONFIG, id_of, start_id
from model.importers.own_tokenizers import refused_unknown
from model.importers.pieces import HIDDEN
from model.importers.vocabularies import Vocabularies, kind_of
from model.network.config import InputError, TransformerConfig
from model.usage import Slot, Usage

SOURCE: Slot = "source_language"
TARGET: Slot = "target_language"
Ids = list[int | Slot]


@dataclass(frozen=True, slots=True)
class Ends:
    """Ids around a source, and those that the decoder reads before it generates."""

    prefix: Ids
    suffix: Ids
    start: Ids


def read_usage(
    checkpoint: Checkpoint, vocabularies: Vocabularies, config: TransformerConfig
) -> Usage:
    """Return how the model is used. Raise InputError naming a decoding option that Heed lacks."""
    if checkpoint.config_name == OWN:
        own = read_description(checkpoint)
        usage = Usage(
            source_prefix=[*own.source_prefix_ids],
            source_suffix=[*own.source_suffix_ids],
            decoder_start=[own.start_id],
            max_new_tokens=config.max_target_length,
            unknown_id=refused_unknown(
                own, vocabularies.source.tokenizer, vocabularies.target.tokenizer
            ),
        )
        check_limits(checkpoint, config, usage)
        return usage
    compose = {side.converted.compose for side in (vocabularies.source, vocabularies.target)}
    if len(compose) > 1:
        raise InputError(
            f"{checkpoint.folder}: the sentencepiece models of the two sides normalize differently:"
            " Heed composes marks on both sides or on neither, so this model cannot be converted"
        )
    generation = Generation(checkpoint)
    ends = read_ends(checkpoint, vocabularies, generation)
    forced = len(ends.start) - 1
    codes = vocabularies.languages
    decoding, most = generation.search(config, forced)
    usage = Usage(
        source_prefix=ends.prefix,
        source_suffix=ends.suffix,
        decoder_start=ends.start,
        source_languages=codes if SOURCE in (*ends.prefix, *ends.suffix) else {},
        target_languages=codes if TARGET in (*ends.prefix, *ends.start) else {},
        decoding=decoding,
        max_new_tokens=most,
        unknown_id=None,  # real models were trained to read it
        compose=compose.pop(),
    )
    check_limits(checkpoint, config, usage)
    return usage


def read_ends(checkpoint: Checkpoint, vocabularies: Vocabularies, generation: Generation) -> Ends:
    options = checkpoint.optional_json("tokenizer_config.json")
    eos = source_end(checkpoint, vocabularies, options)
    start = start_id(checkpoint)
    forced: Ids = [] if generation.forced_bos_id is None else [generation.forced_bos_id]
    language: Ids = [TARGET] if vocabularies.languages else []
    match kind_of(checkpoint):
        case "mbart" if not is_mbart_50(checkpoint, options):
            return Ends([], [eos, SOURCE], [TARGET])
        case "nllb" if options.get("legacy_behaviour"):
            return Ends([], [eos, SOURCE], [start, TARGET])
        case "nllb" | "m2m_100" | "mbart":
            return Ends([SOURCE], [eos], [start, TARGET])
        case "bart":
            return Ends([id_of(checkpoint, CONFIG, "bos_token_id")], [eos], [start, *forced])
        case _:  # Marian, Pegasus and T5, whose language, if any, is that of the target
            return Ends(language, [eos], [start, *forced])


def source_end(checkpoint: Checkpoint, vocabularies: Vocabularies, options: dict[str, Any]) -> int:
    """Return the id that the tokenizer puts after a source. Targets may end with another one."""
    named = options.get("eos_token") or "</s>"
    name = str(named["content"] if isinstance(named, dict) else named)
    tokenizer = vocabularies.source.tokenizer
    found = (tokenizer.token_to_id(each) for each in (name + HIDDEN, name))
    token_id = next((each for each in found if each is not None), None)
    if token_id is None:
        raise InputError(
            f"{checkpoint.folder}: the source tokenizer has no {name}, which ends a text: give the"
            " files that belong to this model"
        )
    return token_id


def is_mbart_50(checkpoint: Checkpoint, options: dict[str, Any]) -> bool:
    named = (checkpoint.config.get("tokenizer_class"), options.get("tokenizer_class"))
    return any(str(name).startswith("MBart50") for name in named)
