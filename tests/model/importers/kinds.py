"""Every kind of checkpoint that the tests convert, and the languages of a request to each."""

from importlib import import_module

from tests.model.importers.checkpoints import (
    write_bart,
    write_blenderbot,
    write_blenderbot_small,
    write_m2m100,
    write_marian,
    write_marian_of_two_vocabularies,
    write_mbart,
    write_mbart50,
    write_nllb,
    write_pegasus,
    write_plbart,
    write_small100,
)
from tests.model.importers.t5_checkpoints import (
    write_byt5,
    write_codet5,
    write_flan,
    write_madlad,
    write_mt5,
    write_t5,
    write_umt5,
)

WRITERS = {
    "marian": write_marian,
    "marian2": write_marian_of_two_vocabularies,
    "nllb": write_nllb,
    "m2m100": write_m2m100,
    "small100": write_small100,
    "mbart": write_mbart,
    "mbart50": write_mbart50,
    "plbart": write_plbart,
    "bart": write_bart,
    "blenderbot": write_blenderbot,
    "blenderbot_small": write_blenderbot_small,
    "pegasus": write_pegasus,
    "t5": write_t5,
    "flan": write_flan,
    "mt5": write_mt5,
    "umt5": write_umt5,
    "madlad": write_madlad,
    "byt5": write_byt5,
    "codet5": write_codet5,
}
T5 = ("t5", "flan", "mt5", "umt5", "madlad", "byt5", "codet5")
LANGUAGES = {
    "nllb": {"source_language": "eng_Latn", "target_language": "fra_Latn"},
    "m2m100": {"source_language": "en", "target_language": "fr"},
    "small100": {"target_language": "fr"},
    "mbart": {"source_language": "en_XX", "target_language": "fr_XX"},
    "mbart50": {"source_language": "en_XX", "target_language": "fr_XX"},
    "plbart": {"source_language": "python", "target_language": "en_XX"},
    "madlad": {"target_language": "fr"},
}


def banned(kind, theirs):
    """Return the tokens that are never generated and whose probability the others share."""
    return [theirs.config.pad_token_id] if kind.startswith("marian") else []


def every_language(kind):
    """Return the languages of Hugging Face's tokenizer, which has them all, in its order."""
    module = "m2m_100" if kind == "m2m100" else kind
    codes = import_module(
        f"transformers.models.{module}.tokenization_{module}"
    ).FAIRSEQ_LANGUAGE_CODES
    return tuple(codes["m2m100"] if kind == "m2m100" else codes)
