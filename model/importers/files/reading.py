"""Read the files of a checkpoint's folder."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from model.network.config import InputError

LFS_POINTER = b"version https://git-lfs"


@dataclass(frozen=True, slots=True, eq=False)
class StoredTensor:
    """Names that share a tensor in the file share its Stored."""

    shape: tuple[int, ...]
    read: Callable[[], Tensor]


def read(path: Path) -> bytes:
    """Raise InputError if there is no such file, or only a pointer of git-lfs to it."""
    if not path.exists() or path.is_dir():
        raise InputError(f"{path} is missing: copy or download the whole folder")
    check_pointer(path)
    return path.read_bytes()


def check_pointer(path: Path) -> None:
    if head_of(path, len(LFS_POINTER)) == LFS_POINTER:
        raise InputError(f"{path} is a git-lfs pointer to the file itself: run git lfs pull")


def head_of(path: Path, size: int) -> bytes:
    with path.open("rb") as file:
        return file.read(size)
