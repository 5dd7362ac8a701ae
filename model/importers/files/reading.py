"""Read the files of a checkpoint's folder."""

import gzip
import io
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from model.network.config import InputError

LFS_POINTER = b"version https://git-lfs"
PACKED = ".gz"
# Bytes that a packed byte may become, since weights hardly shrink, and those of any file
MOST_UNPACKED, FREE = 64, 1 << 20


@dataclass(frozen=True, slots=True, eq=False)
class StoredTensor:
    """Names that share a tensor in the file share its Stored."""

    shape: tuple[int, ...]
    read: Callable[[], Tensor]


def read(path: Path, largest: int | None = None) -> bytes:
    """Raise InputError if there is no such file, or only a pointer of git-lfs to it, or if it has
    more than `largest` bytes, packed or not."""
    if not path.exists() or path.is_dir():
        raise InputError(f"{path} is missing: copy or download the whole folder")
    check_pointer(path)
    if largest is not None and path.stat().st_size > largest:
        raise InputError(f"{path} has more than {largest} bytes: copy or download it again")
    content = path.read_bytes()
    return unpack(content, path, largest) if path.suffix == PACKED else content


def unpack(content: bytes, path: Path, largest: int | None = None) -> bytes:
    """Return what gzip has packed. Raise InputError if it is damaged, or if it is more than
    `largest` bytes, or far more than a model is packed to."""
    most = MOST_UNPACKED * len(content) + FREE
    most = most if largest is None else min(most, largest)
    try:
        unpacked = gzip.GzipFile(fileobj=io.BytesIO(content)).read(most + 1)
    except EOFError as error:
        raise InputError(f"{path} is cut short: copy or download it again") from error
    except (OSError, zlib.error) as error:
        raise InputError(f"{path} is not packed by gzip, or is damaged: copy it again") from error
    if len(unpacked) > most:
        raise InputError(f"{path} unpacks to more than {most} bytes: copy or download it again")
    return unpacked


def check_pointer(path: Path) -> None:
    if head_of(path, len(LFS_POINTER)) == LFS_POINTER:
        raise InputError(f"{path} is a git-lfs pointer to the file itself: run git lfs pull")


def head_of(path: Path, size: int) -> bytes:
    with path.open("rb") as file:
        return file.read(size)
