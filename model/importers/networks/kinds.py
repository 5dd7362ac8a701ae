"""Tell by config.json alone whether a checkpoint can be converted."""

from collections.abc import Mapping
from typing import Any

from model.importers.fields import architectures, check_architecture
from model.importers.networks import bart, t5
from model.network.config import InputError

INDIC_TRANS = "IndicTrans"  # the model_type of IndicTrans2


def check_config(config: Mapping[str, Any], place: str) -> None:
    """Raise InputError naming the known kinds if `config` is of another one, or for another head
    or quantised weights. `place` is the folder or the name of its checkpoint."""
    kind, known = config.get("model_type"), (*bart.KINDS, *t5.KINDS)
    if kind in known:
        check_architecture(config, place)
        return
    if kind == INDIC_TRANS:
        raise InputError(
            f"{place} is IndicTrans2, which Heed does not convert: its IndicProcessor, outside of"
            " the tokenizer, brings all Indic scripts to Devanagari and back, and a bundle has no"
            " place for it; convert an NLLB instead, such as facebook/nllb-200-distilled-600M"
        )
    named = architectures(config, place)
    decoder_only = any(name.endswith(("ForCausalLM", "LMHeadModel")) for name in named)
    advice = "; it has a decoder alone, and Heed serves encoder-decoders" if decoder_only else ""
    raise InputError(
        f"{place}: config.json has model_type {kind!r}: Heed knows {', '.join(known)}{advice}"
    )
