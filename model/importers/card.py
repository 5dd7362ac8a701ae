"""Write the model card of a converted checkpoint from its README, its files and the proofs."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from model.export.files.manifest import Card, hash_file
from model.importers.checkpoint import Checkpoint
from model.importers.folders import name_of
from model.importers.proofs.proof import Proof, as_text
from model.importers.readme import joined_text, read_front_matter, task_of
from model.importers.usage.decoding import NAMES
from model.usage import Usage

LICENCES = ("LICENSE", "LICENSE.txt", "LICENSE.md", "LICENCE")


def write_card(
    checkpoint: Checkpoint,
    name: str,
    licence: str,
    proofs: Sequence[Proof],
    versions: dict[str, str],
    usage: Usage,
    hashes: dict[str, str],
) -> Card:
    head = read_front_matter(checkpoint.folder)
    kind = checkpoint.config.get("model_type") or checkpoint.config["kind"]
    task = task_of(head) or ("translation" if checkpoint.is_marian else "text to text")
    origin = f"converted from {name_of(checkpoint.folder)}, a checkpoint of kind {kind}"
    languages = name_languages(head, usage)
    files = [f"| {path} | {digest} |" for path, digest in hashes.items()]
    lines = [
        f"# {name}",
        "",
        f"{task}; {origin}.",
        "",
        f"Licence of the weights: {licence or 'not stated'}. Languages: {languages}.",
        "",
        *language_lines(usage),
        *task_lines(checkpoint.config.get("task_specific_params"), len(usage.decoder_start) - 1),
        "## What was proved",
        "",
        as_text(proofs),
        "",
        f"With {', '.join(f'{package} {number}' for package, number in versions.items())}.",
        "",
        "## Files that were read",
        "",
        "| file | SHA-256 |",
        "|---|---|",
        *files,
    ]
    return Card(
        name=name,
        task=task,
        licence=licence,
        attribution=origin,
        notice=read_notice(checkpoint.folder, licence, origin),
        model_card="\n".join(lines) + "\n",
    )


def name_languages(head: Mapping[str, Any], usage: Usage) -> str:
    """Return the languages that README.md names, or else those of requests."""
    codes = ", ".join(usage.source_languages | usage.target_languages)
    return joined_text(head.get("language")) or codes or "not said"


def language_lines(usage: Usage) -> list[str]:
    """Return the language codes that a request may give; an empty list if there is no choice.

    README.md may write the same languages in another way.
    """
    lines: list[str] = []
    for slot, codes in (
        ("source_language", usage.source_languages),
        ("target_language", usage.target_languages),
    ):
        if codes:
            lines += [f"`{slot}` is one of {', '.join(codes)}.", ""]
    return lines


def task_lines(tasks: object, forced: int) -> list[str]:
    """Return a table of the tasks that config.json lists; nothing if it lists none.

    No request inherits their options: the checkpoint does not say which task a text is of. `forced`
    is the number of start ids after the first.
    """
    rows: list[str] = []
    for task, options in objects(tasks).items():
        others = (f"{name} {value}" for name, value in options.items() if name != "prefix")
        prefix = options.get("prefix")
        cells = task, f"`{prefix}`" if prefix else "", ", ".join(others)
        rows.append(f"| {' | '.join(cells)} | {', '.join(request_fields(options, forced))} |")
    if not rows:
        return []
    return [
        "## Tasks",
        "",
        "Begin a text with the prefix of its task, and send the fields in the request: they are"
        " Heed's for the options of transformers.",
        "",
        "| task | prefix | options | fields |",
        "|---|---|---|---|",
        *rows,
        "",
    ]


def objects(value: object) -> dict[str, dict[str, Any]]:
    """Return the JSON objects that a JSON object holds; nothing if it is not one."""
    held = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    return {name: each for name, each in held.items() if isinstance(each, dict)}


def request_fields(options: Mapping[str, Any], forced: int) -> list[str]:
    """Return the fields of a request, with their values, that stand for options of `generate`,
    whose lengths count start ids."""
    fields: list[str] = []
    for name, value in options.items():
        if name in ("max_length", "min_length") and isinstance(value, int):
            fields.append(f"{name[:3]}_new_tokens {max(value - 1 - forced, 0)}")
        elif name in NAMES or name in ("max_new_tokens", "min_new_tokens"):
            fields.append(f"{NAMES[name][0] if name in NAMES else name} {json.dumps(value)}")
    return fields


def read_notice(folder: Path, licence: str, origin: str) -> str:
    for name in LICENCES:
        if (folder / name).is_file():
            return (folder / name).read_text(encoding="utf-8-sig", errors="replace")
    return f"The weights are {origin}. Their licence is {licence or 'not stated'}.\n"


def hash_files(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of every file of the folder, by name."""
    return {path.name: hash_file(path) for path in sorted(folder.iterdir()) if path.is_file()}
