"""Make one vector of the vectors of all tokens of a source."""

from service.arrays import FloatArray
from service.wire import Pooling


def pool(memory: FloatArray, pooling: Pooling) -> FloatArray:
    """Return memory (S, M) pooled to (M,), or unchanged if pooling is none."""
    match pooling:
        case "none":
            return memory
        case "mean":
            return memory.mean(axis=0)
        case "max":
            return memory.max(axis=0)
        case "first":
            return memory[0]
        case "last":
            return memory[-1]
