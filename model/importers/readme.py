"""Read what README.md of a checkpoint says, above all its head, which the hub calls a card."""

from pathlib import Path
from typing import Any, cast

import yaml

from model.importers.checkpoint import MARIAN, OWN, config_name
from model.importers.folders import is_of_hub
from model.network.config import InputError

README = "README.md"
TASKS = ("translation", "summarization", "text2text-generation")  # tags that name a task


def read_readme(folder: Path) -> str:
    path = folder / README
    return path.read_text(encoding="utf-8-sig", errors="replace") if path.is_file() else ""


def read_front_matter(folder: Path) -> dict[str, Any]:
    """Return what the head of README.md says, each value as a text: `no` is Norwegian, not false.
    {} if there is none or it is not YAML."""
    lines = read_readme(folder).splitlines()
    if not lines or lines[0].strip() != "---" or "---" not in lines[1:]:
        return {}
    head = lines[1 : lines.index("---", 1)]
    try:
        content = yaml.load("\n".join(head), yaml.BaseLoader)
    except (yaml.YAMLError, RecursionError):
        return {}
    return cast("dict[str, Any]", content) if isinstance(content, dict) else {}


def find_licence(folder: Path, licence: str) -> str:
    """Return `licence`, or what README.md says. "" for a folder of one's own: one that heed.toml
    describes, or one without README.md that is not of the hub; and for files of Marian, whose
    README.md has no head. For others raise InputError."""
    found = licence or joined_text(read_front_matter(folder).get("license"))
    has_readme = (folder / README).is_file()
    if found or config_name(folder) in (OWN, MARIAN) or not (has_readme or is_of_hub(folder)):
        return found
    lacks = f"{folder} has no {README} that names its license"
    if has_readme:
        lacks = f"{folder / README} names no license at its head"
    raise InputError(f"{lacks}: give --licence, such as --licence Apache-2.0")


def task_of(head: dict[str, Any]) -> str:
    """Return the task that the head of README.md names, if need be among its tags; "" if none."""
    tags = texts_of(head.get("tags"))
    return joined_text(head.get("pipeline_tag")) or next((t for t in TASKS if t in tags), "")


def texts_of(value: Any) -> list[str]:
    """Return a text, or the texts of a list; none of a value that is missing or null."""
    if isinstance(value, list):
        return [*map(str, cast("list[Any]", value))]
    return [] if value in (None, "", "null", "~") else [str(value)]


def joined_text(value: Any) -> str:
    """Return a text, or the texts of a list joined by commas."""
    return ", ".join(texts_of(value))
