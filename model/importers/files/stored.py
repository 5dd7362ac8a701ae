"""A tensor of a file, before its numbers are read."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class StoredTensor:
    """Names that share a tensor in the file share its Stored."""

    shape: tuple[int, ...]
    read: Callable[[], Tensor]
