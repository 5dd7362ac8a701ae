"""Read the text files that users give."""

from pathlib import Path

from model.network.config import InputError


def read_text(path: Path) -> str:
    """Return a file's text, without the byte order mark that some editors write first.

    Raise InputError if it is not UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8: convert it") from error
