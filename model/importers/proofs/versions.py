"""Differences between versions of transformers in how they read a checkpoint.

Heed decodes and computes as transformers 5.23 does. Each fact below was seen in the versions that
it names: 4.57.3, 5.1, 5.15, 5.17, 5.18, 5.19, 5.21 and 5.23.
"""

from collections.abc import Collection
from typing import Any

from model.importers.checkpoint import GENERATION, Checkpoint
from model.importers.fields import CONFIG
from model.importers.networks.t5 import EMBEDDINGS, HEAD, KINDS
from model.importers.usage.decoding import FROM_CONFIG, OLD_FORCED, UNSUPPORTED

VALID = "install transformers 5.23 or later to compare"
DEFAULTS: dict[str, Any] = {  # of options that a file may hold or leave out
    "num_beams": 1,
    "length_penalty": 1,
    "early_stopping": False,
    "no_repeat_ngram_size": 0,
    "repetition_penalty": 1,
    "encoder_no_repeat_ngram_size": 0,
    "encoder_repetition_penalty": 1,
    "min_length": 0,
    "max_length": 20,
    "max_new_tokens": None,
    "min_new_tokens": None,
    "forced_bos_token_id": None,
    "bad_words_ids": None,
    "suppress_tokens": None,
    "renormalize_logits": False,
    OLD_FORCED: False,
}


def describe_differences(checkpoint: Checkpoint) -> list[str]:
    """Return a sentence for each choice of Heed that another version of transformers makes
    differently: none for most checkpoints."""
    found: list[str] = []
    if options := unheard_options(checkpoint):
        made = checkpoint.optional_json(GENERATION).get(FROM_CONFIG)
        older = "transformers 4" if made else "versions before this file existed"
        found.append(
            f"{CONFIG} has {', '.join(options)}, unlike {GENERATION}: Heed and transformers 5"
            f" decode by {GENERATION} alone, {older} by {CONFIG}; copy into {GENERATION} what is"
            " to hold"
        )
    tied = checkpoint.config.get("tie_word_embeddings")
    if checkpoint.config.get("model_type") == "umt5" and tied is False:
        found.append(
            f"{CONFIG} has tie_word_embeddings false: Heed and transformers 5 scale UMT5's outputs"
            " by d_model^-0.5 nevertheless, transformers 4 does not; the best token is the same,"
            " but its probability is not"
        )
    return found


def unheard_options(checkpoint: Checkpoint) -> list[str]:
    """Return the options of config.json, with their values, that generation_config.json decides
    otherwise."""
    if not (checkpoint.folder / GENERATION).is_file():
        return []
    heard, found = dict(checkpoint.optional_json(GENERATION)), list[str]()
    if heard.get("forced_bos_token_id") is not None:  # as it is called now
        heard[OLD_FORCED] = checkpoint.config.get(OLD_FORCED)
    for name in (*DEFAULTS, *UNSUPPORTED):
        value, other = checkpoint.config.get(name), heard.get(name)
        harmless = (DEFAULTS.get(name), *UNSUPPORTED.get(name, ()))
        if value is None or value == other or (other is None and value in harmless):
            continue
        found.append(f"{name} {value!r}")
    return found


def find_fault(checkpoint: Checkpoint, version: str) -> str | None:
    """Return why this version of transformers computes other numbers than later versions; None if
    no reason is known. The checkpoint may be closed."""
    major, minor = (int(part) for part in version.split(".")[:2])
    kind, config = checkpoint.config["model_type"], checkpoint.config
    if kind not in KINDS or (major, minor) >= (5, 18):
        return None
    names = {*checkpoint.names}
    own_output, tied = HEAD in names, config.get("tie_word_embeddings") is not False
    if major >= 5:
        lacks = EMBEDDINGS[0] not in names and not names.issuperset(EMBEDDINGS[1:])
        if kind == "umt5":
            return f"transformers 5.0 to 5.17 computes some UMT5 otherwise: {VALID}"
        if kind == "t5" and own_output and lacks:
            return f"transformers 5.0 to 5.17 takes an embedding from {HEAD}: {VALID}"
        return None
    scales = {"t5": "scale_decoder_outputs" in config, "mt5": tied, "umt5": not tied}[kind]
    if scales or (own_output and tied):
        return f"transformers 4 scales or ties the output of this checkpoint otherwise: {VALID}"
    return None


def find_random_weights(missing: Collection[str]) -> str | None:
    """Return why transformers is not a valid reference if it filled weights with random numbers,
    as it does with those that a file lacks and that it does not tie. Computed ones do not count."""
    left = sorted(name for name in missing if "embed_positions" not in name)
    if not left:
        return None
    return f"transformers has no weights for {', '.join(left)}, and makes them up"
