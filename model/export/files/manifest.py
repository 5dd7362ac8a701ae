"""bundle.json: the contents of a bundle and how to use them (docs/bundle.md)."""

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from model.checkpoint import TOKENIZERS, TrainedModel
from model.data.tokenizers import UNK
from model.export.files.limits import find_faults
from model.network.config import InputError
from model.usage import Usage, plain_usage

FORMAT_VERSION = 3
MIB = 1 << 20
SHORTLISTS = "shortlists.npz"
TARGET_LISTS = "target_lists.npz"
LIST_GRAPH = "listed_"  # begins the name of the graph of a language's list
LARGEST = {  # bytes of a file that the service reads as a whole
    "bundle.json": 2 * MIB,
    "MODEL_CARD.md": MIB,
    "parity.npz": 64 * MIB,
    SHORTLISTS: 64 * MIB,
    TARGET_LISTS: 64 * MIB,
    **dict.fromkeys(TOKENIZERS, 64 * MIB),
}
MOST_EXAMPLES = 10
LONGEST_EXAMPLE = 1000  # characters


class Precision(StrEnum):
    """The arithmetic of a bundle's graphs."""

    fp32 = "fp32"
    int8 = "int8"
    fp16 = "fp16"
    both = "both"  # fp32 and int8
    auto = "auto"  # fp32, and int8 unless its proof fails
    all = "all"

    @property
    def folders(self) -> tuple[str, ...]:
        """Names of the precisions that this stands for: each has a folder in the bundle."""
        match self:
            case Precision.both | Precision.auto:
                return ("fp32", "int8")
            case Precision.all:
                return FOLDERS
            case _:
                return (self.value,)


FOLDERS = ("fp32", "int8", "fp16")


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """Name, task, licence and texts of a bundle. All but the name may be empty, and are then left
    out.

    `notice` is written as NOTICE, and `model_card` as MODEL_CARD.md; `examples` are sources.
    """

    name: str
    task: str = ""
    licence: str = ""
    attribution: str = ""
    examples: Sequence[str] = ()
    notice: str = ""
    model_card: str = ""


def describe(trained: TrainedModel, card: Card, bundle: Path) -> dict[str, Any]:
    """Return the manifest of the files that lie in `bundle`."""
    config, usage = trained.transformer.config, usage_of(trained)
    texts = {
        "task": card.task,
        "licence": card.licence,
        "attribution": card.attribution,
        "examples": [{"source": source} for source in card.examples],
    }
    return {
        "format_version": FORMAT_VERSION,
        "name": card.name,
        **{key: given for key, given in texts.items() if given},
        "config": asdict(config),
        "limits": {
            "max_source_length": config.max_source_length,
            "max_target_length": config.max_target_length,
        },
        "decoding": {"max_new_tokens": usage.max_new_tokens, **usage.decoding},
        "pad_id": config.pad_id,
        "eos_id": config.eos_id,
        **({"other_eos_ids": usage.other_eos_ids} if usage.other_eos_ids else {}),
        "unknown_id": usage.unknown_id,
        "source_prefix": usage.source_prefix,
        "source_suffix": usage.source_suffix,
        "decoder_start": usage.decoder_start,
        "languages": describe_languages(usage),
        "tokenizers": {
            "source": TOKENIZERS[0],
            "target": TOKENIZERS[1],
            "compose": usage.compose,
        },
        **({} if usage.shortlists is None else {"shortlists": SHORTLISTS}),
        **({"target_lists": describe_lists(bundle)} if usage.target_lists else {}),
        "precisions": list_graphs(bundle),
        "origin": usage.origin,
        "files": list_files(bundle),
    }


def usage_of(trained: TrainedModel) -> Usage:
    if trained.usage is not None:
        return trained.usage
    unknown_id = trained.source_tokenizer.token_to_id(UNK)
    return plain_usage(trained.transformer.config, unknown_id)


def check_limits(trained: TrainedModel) -> None:
    """Raise InputError for what the service would refuse in bundle.json."""
    for key, value, expected in find_faults(trained.transformer.config, usage_of(trained)):
        raise InputError(f"{key} is {value}; expected {expected}: no bundle may hold it")


def check_files(bundle: Path) -> None:
    """Raise InputError if a file is larger than the service reads."""
    for name, limit in LARGEST.items():
        path = bundle / name
        if path.is_file() and (size := path.stat().st_size) > limit:
            raise InputError(
                f"{name} of the bundle has {size} bytes; the limit is {limit}: shorten what it is"
                " made of"
            )


def describe_languages(usage: Usage) -> dict[str, Any]:
    languages = {"source": usage.source_languages, "target": usage.target_languages}
    default = {} if usage.default_target is None else {"default_target": usage.default_target}
    return {**languages, **default}


def check_examples(examples: Sequence[str]) -> None:
    """Raise InputError for more examples than a bundle may hold, and for one that is empty or too
    long."""
    if len(examples) > MOST_EXAMPLES:
        raise InputError(
            f"{len(examples)} examples are given and a bundle holds at most {MOST_EXAMPLES}:"
            " give fewer --example"
        )
    for example in examples:
        if not 0 < len(example) <= LONGEST_EXAMPLE:
            raise InputError(
                f"an example has {len(example)} characters: give --example 1 to {LONGEST_EXAMPLE}"
            )


def list_graphs(bundle: Path) -> dict[str, dict[str, str]]:
    """Return, for each precision that has a folder, the files of its graphs by name."""
    return {
        precision: {name: file for name, file in files.items() if not name.startswith(LIST_GRAPH)}
        for precision, files in graph_files(bundle).items()
    }


def describe_lists(bundle: Path) -> dict[str, Any]:
    """Return the file of the languages' lists and, for each precision that has them, their graphs
    by language."""
    graphs = {
        precision: {
            name.removeprefix(LIST_GRAPH): file
            for name, file in files.items()
            if name.startswith(LIST_GRAPH)
        }
        for precision, files in graph_files(bundle).items()
    }
    return {"tokens": TARGET_LISTS, "graphs": {name: each for name, each in graphs.items() if each}}


def graph_files(bundle: Path) -> dict[str, dict[str, str]]:
    return {
        precision: {graph.stem: f"{precision}/{graph.name}" for graph in sorted(graphs)}
        for precision in FOLDERS
        if (graphs := list(bundle.glob(f"{precision}/*.onnx")))
    }


def list_files(bundle: Path) -> dict[str, dict[str, Any]]:
    """Return size and SHA-256 of every file, by its path within the bundle."""
    return {
        path.relative_to(bundle).as_posix(): {
            "size": path.stat().st_size,
            "sha256": hash_file(path),
        }
        for path in sorted(bundle.rglob("*"))
        if path.is_file()
    }


def hash_file(path: Path) -> str:
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
