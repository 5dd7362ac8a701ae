"""What Marian's two kinds of files hold: options, and tensors under Marian's names."""

from dataclasses import dataclass
from pathlib import Path

from model.importers.files.reading import StoredTensor
from model.network.config import InputError

OPTIONS = "special:model.yml"
LONGEST_OPTIONS = 1 << 16  # bytes
MOST_AXES, LONGEST_AXIS = 4, (1 << 31) - 1
AGAIN = "copy or download it again"


@dataclass(frozen=True, slots=True)
class Container:
    """`options` is the text of the item `special:model.yml`."""

    path: Path
    options: bytes
    tensors: dict[str, StoredTensor]


def check_shape(path: Path, name: str, shape: tuple[int, ...]) -> None:
    """Raise InputError for a shape that no tensor of Marian has, before anything is computed of
    it."""
    if not 1 <= len(shape) <= MOST_AXES or not all(0 < each <= LONGEST_AXIS for each in shape):
        raise InputError(f"{path}: {shown(name)} has the shape {str(shape)[:60]}: {AGAIN}")


def shown(name: str) -> str:
    """Return the name of an item for a message: a damaged file has long ones, and signs that do not
    print."""
    return repr(name[:60])
