"""Read how a checkpoint is used: the ids around its texts, its languages, how it decodes."""

from dataclasses import replace

import numpy as np

from model.importers.checkpoint import OWN, Checkpoint
from model.importers.description import read_description
from model.importers.fields import eos_ids, start_id
from model.importers.files.marian import find_vocabularies
from model.importers.files.shortlist_file import (
    find_shortlists,
    read_shortlists,
    with_own_tokens,
)
from model.importers.networks.marian_options import guided_layer
from model.importers.tokenizers.kinds import kind_of
from model.importers.tokenizers.marian import EOS, UNKNOWN
from model.importers.tokenizers.own import refused_unknown
from model.importers.usage.decoding import Generation, check_lengths, marian_decoding
from model.importers.usage.framing import (
    SOURCE_SLOT,
    TARGET_SLOT,
    Frame,
    SlottedIds,
    is_mbart_50,
    read_frame,
)
from model.importers.usage.pair import find_pair
from model.importers.vocabularies import Vocabularies
from model.network.config import InputError, TransformerConfig
from model.usage import GUIDED, Codes, Shortlists, Usage


def read_usage(
    checkpoint: Checkpoint, vocabularies: Vocabularies, config: TransformerConfig
) -> Usage:
    """Return how the model is used. Raise InputError naming a decoding option that Heed lacks."""
    if checkpoint.config_name == OWN:
        usage = read_own_usage(checkpoint, vocabularies, config)
    else:
        read = read_marian_usage if checkpoint.is_marian else read_generation
        compose = read_compose(checkpoint, vocabularies)
        usage = read(checkpoint, vocabularies, config, compose)
    check_lengths(checkpoint, config, usage)
    return usage


def read_own_usage(
    checkpoint: Checkpoint, vocabularies: Vocabularies, config: TransformerConfig
) -> Usage:
    """Return what heed.toml says."""
    own = read_description(checkpoint)
    tokenizers = vocabularies.source.tokenizer, vocabularies.target.tokenizer
    return Usage(
        source_prefix=[*own.source_prefix_ids],
        source_suffix=[*own.source_suffix_ids],
        decoder_start=[own.start_id],
        max_new_tokens=config.max_target_length,
        unknown_id=refused_unknown(own, *tokenizers),
    )


def read_generation(
    checkpoint: Checkpoint, vocabularies: Vocabularies, config: TransformerConfig, compose: bool
) -> Usage:
    """Return how Hugging Face's `generate` uses a checkpoint."""
    generation = Generation(checkpoint)
    generation.check_vocabularies(vocabularies)
    frame = read_frame(checkpoint, vocabularies)
    start, language = read_start(checkpoint, vocabularies, generation)
    sources, targets = read_languages(checkpoint, vocabularies, frame, start)
    decoding, most = generation.search(config, len(start) - 1)
    return Usage(
        source_prefix=frame.prefix,
        source_suffix=frame.suffix,
        decoder_start=start,
        source_languages=sources,
        target_languages=targets,
        default_target=language,
        decoding=decoding,
        max_new_tokens=most,
        other_eos_ids=eos_ids(checkpoint, config.target_vocab_size)[1:],
        unknown_id=None,  # real models were trained to read it
        compose=compose,
    )


def read_compose(checkpoint: Checkpoint, vocabularies: Vocabularies) -> bool:
    """Return whether the service composes letters with their marks. Raise InputError if the sides
    differ."""
    compose = {side.converted.compose for side in (vocabularies.source, vocabularies.target)}
    if len(compose) > 1:
        raise InputError(
            f"{checkpoint.folder}: the sentencepiece models of the two sides normalize differently:"
            " Heed composes marks on both sides or on neither, so this model cannot be converted"
        )
    return compose.pop()


def read_marian_usage(
    checkpoint: Checkpoint, vocabularies: Vocabularies, config: TransformerConfig, compose: bool
) -> Usage:
    """Return how Marian itself uses a model: it ends sources with </s>, and begins targets with
    nothing, for which a token stands here."""
    source, target = vocabularies.source.names, vocabularies.target.names
    languages, pair = vocabularies.languages, find_pair(checkpoint)
    sources, targets = ({pair[0]: []}, {pair[1]: []}) if pair else ({}, {})
    return Usage(
        source_prefix=[TARGET_SLOT] if languages else [],
        source_suffix=[source.index(EOS)],
        decoder_start=[config.bos_id],
        source_languages={} if languages else sources,
        target_languages=languages or targets,
        decoding=marian_decoding(checkpoint, target.index(UNKNOWN)),
        max_new_tokens=config.max_target_length,
        unknown_id=None,
        compose=compose,
        guided=(guided_layer(checkpoint), 0),
        surely_guided=GUIDED in checkpoint.config["file"],
        shortlists=read_marian_shortlists(checkpoint, config),
    )


def read_marian_shortlists(checkpoint: Checkpoint, config: TransformerConfig) -> Shortlists | None:
    """Return the shortlists that lie next to the weights, with the tokens that Marian adds."""
    path = find_shortlists(checkpoint.folder)
    if path is None:
        return None
    found = read_shortlists(path, config.source_vocab_size, config.target_vocab_size)
    source, target = find_vocabularies(checkpoint.folder)
    found = with_own_tokens(found) if source == target else found
    return replace(found, always=np.union1d(found.always, [config.eos_id]))


def read_languages(
    checkpoint: Checkpoint, vocabularies: Vocabularies, frame: Frame, start: SlottedIds
) -> tuple[Codes, Codes]:
    """Return the languages of sources and of targets: those with a slot for their ids. Without ids,
    the pair of an OPUS-MT that has only one, and the sources of SMaLL-100, which are the same as
    its targets and need not be told."""
    codes, around = vocabularies.languages, (*frame.prefix, *frame.suffix)
    if kind_of(checkpoint) == "marian" and TARGET_SLOT not in around:
        pair = find_pair(checkpoint)
        return ({pair[0]: []}, {pair[1]: []}) if pair else ({}, {})
    if kind_of(checkpoint) == "small100":
        return {code: [] for code in codes}, codes
    has_target = TARGET_SLOT in (*around, *start)
    return codes if SOURCE_SLOT in around else {}, codes if has_target else {}


def read_start(
    checkpoint: Checkpoint, vocabularies: Vocabularies, generation: Generation
) -> tuple[SlottedIds, str | None]:
    """Return what the decoder reads before it generates, and the language of targets if the files
    fix one: by a forced first token, or by the decoder's first id, as in mBART-25 and PLBart."""
    start, forced = start_id(checkpoint), generation.forced_bos_id
    fixed: SlottedIds = [] if forced is None else [forced]
    kind, languages = kind_of(checkpoint), vocabularies.languages
    if kind not in ("nllb", "m2m_100", "mbart", "plbart"):
        return [start, *fixed], None
    codes = {ids[0]: code for code, ids in languages.items() if len(ids) == 1}
    if forced in codes and forced != start:
        return [start, TARGET_SLOT], codes[forced]
    if start in codes:
        return [TARGET_SLOT, *([TARGET_SLOT] if forced == start else fixed)], codes[start]
    is_first = kind == "plbart" or (kind == "mbart" and not is_mbart_50(checkpoint, languages))
    if is_first and not fixed:
        return [TARGET_SLOT], None
    return [start, *(fixed or [TARGET_SLOT])], None
