"""The types of arrays that cross modules."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float32]
CacheArray = NDArray[np.float32 | np.float16]  # keys and values, as the step graph reads them
Feeds = dict[str, NDArray[Any]]  # inputs of a graph, by name
