"""Tell which tokenizer a checkpoint has: the kind of its files, and the class that they name."""

import json
import re
from pathlib import Path

from model.importers.checkpoint import Checkpoint
from model.importers.folders import name_of
from model.importers.tokenizers.added_tokens import STORED, TOKENIZER_CONFIG
from model.network.config import InputError

SENTENCEPIECE = "sentencepiece.bpe.model"
FILES = {  # of a tokenizer, by its kind
    "marian": ("source.spm", "target.spm", "vocab.json"),
    "bart": ("vocab.json", "merges.txt"),
    "blenderbot": ("vocab.json", "merges.txt"),
    "blenderbot-small": ("vocab.json", "merges.txt"),
    "pegasus": ("spiece.model",),
    "t5": ("spiece.model",),
    "m2m_100": (SENTENCEPIECE, "vocab.json"),
    "small100": (SENTENCEPIECE, "vocab.json"),
    "nllb": (SENTENCEPIECE,),
    "mbart": (SENTENCEPIECE,),
    "plbart": (SENTENCEPIECE,),
}
UNSTORED = ("marian", "m2m_100", "small100", "plbart", "blenderbot-small")
STORABLE = FILES.keys() - {*UNSTORED}  # kinds that tokenizer.json stands for
GENERIC = ("PreTrainedTokenizerFast", "TokenizersBackend")  # classes that read STORED alone
BYTES = "ByT5Tokenizer"
PREFIX_SPACE = ("Bart", "Roberta", "Blenderbot")  # classes that set this flag, whatever STORED has
SMALL_100 = "SMALL100Tokenizer"  # in a file of its own, tokenization_small100.py
SMALL_100_NAME = re.compile(r"small[-_]?100(?!\d)", re.IGNORECASE)


def kind_of(checkpoint: Checkpoint) -> str:
    """Return the kind of tokenizer. NLLB has the network of M2M100, and files like mBART's;
    SMaLL-100 has the network and the files of M2M100."""
    kind = str(checkpoint.config["model_type"])
    if kind in ("mt5", "umt5"):
        return "t5"
    if kind == "m2m_100" and not (checkpoint.folder / "vocab.json").is_file():
        return "nllb"
    return "small100" if kind == "m2m_100" and is_small_100(checkpoint) else kind


def is_small_100(checkpoint: Checkpoint) -> bool:
    """Return whether an M2M100 is marked as SMaLL-100: by the class of its tokenizer, the file of
    that class, or its name. Its own files may name M2M100's class."""
    options = checkpoint.optional_json(TOKENIZER_CONFIG)
    names = (name_of(checkpoint.folder), str(checkpoint.config.get("_name_or_path")))
    return (
        class_of(checkpoint) == SMALL_100
        or SMALL_100 in json.dumps(options.get("auto_map"))
        or (checkpoint.folder / "tokenization_small100.py").is_file()
        or any(SMALL_100_NAME.search(name) for name in names)
    )


def need(checkpoint: Checkpoint, kind: str) -> list[Path]:
    """Return the paths of the files. Raise InputError naming all that are missing."""
    names = FILES[kind]
    if kind == "t5" and has_part(checkpoint, "bart") and not has_part(checkpoint, "t5"):
        names = FILES["bart"]  # as CodeT5
    paths = [checkpoint.folder / name for name in names]
    if missing := [path.name for path in paths if not path.is_file()]:
        advice = f", or {STORED} in their place" if kind in STORABLE else ""
        if named := class_of(checkpoint):
            advice += f"; its tokenizer_class is {named}"
        elif kind == "t5":
            advice += f'; if it is a ByT5, write "tokenizer_class": "{BYTES}" into its config.json'
        raise InputError(
            f"{checkpoint.folder} has no {' and no '.join(missing)}: a checkpoint of kind"
            f" {checkpoint.config['model_type']} has {', '.join(names)} next to its weights{advice}"
        )
    return paths


def has_part(checkpoint: Checkpoint, kind: str) -> bool:
    """Return whether one of the files is there."""
    return any((checkpoint.folder / name).is_file() for name in FILES[kind])


def uses_tokenizer_json(checkpoint: Checkpoint, kind: str) -> bool:
    """Return whether to read tokenizer.json because other files are missing, or because the files
    name a class that reads no other. A tokenizer.json that only lists added tokens does not count.
    """
    incomplete = not all((checkpoint.folder / name).is_file() for name in FILES[kind])
    alone = incomplete or class_of(checkpoint) in GENERIC
    return kind in STORABLE and alone and "model" in checkpoint.optional_json(STORED)


def is_byte_level(checkpoint: Checkpoint) -> bool:
    """Return whether a T5 has the tokenizer files of BART, as CodeT5."""
    spiece, *others = (*FILES["t5"], *FILES["bart"])
    there = all((checkpoint.folder / name).is_file() for name in others)
    return there and not (checkpoint.folder / spiece).is_file()


def is_bytes(checkpoint: Checkpoint) -> bool:
    """Return whether a T5 reads bytes, as ByT5, which has no file of a tokenizer."""
    return kind_of(checkpoint) == "t5" and class_of(checkpoint) == BYTES


def class_of(checkpoint: Checkpoint) -> str:
    """Return the tokenizer's class that the files name, "" if none."""
    options = checkpoint.optional_json(TOKENIZER_CONFIG)
    named = options.get("tokenizer_class") or checkpoint.config.get("tokenizer_class")
    return str(named or "")


def adds_prefix_space(checkpoint: Checkpoint) -> bool:
    value = checkpoint.optional_json(TOKENIZER_CONFIG).get("add_prefix_space")
    return kind_of(checkpoint) == "blenderbot" if value is None else bool(value)
