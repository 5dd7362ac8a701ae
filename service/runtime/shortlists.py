"""Read the shortlists of a bundle: which tokens the targets of a source may have."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from service.arrays import IntArray
from service.bundle.files import check_size
from service.bundle.manifest import Config
from service.errors import StartupError
from service.runtime.reference import LARGEST_REFERENCE, read_arrays


class Shortlists:
    """Axes: V source vocabulary, N listed tokens."""

    def __init__(self, offsets: IntArray, tokens: IntArray, always: IntArray) -> None:
        """Token s of a source (V,) lists tokens[offsets[s]] to tokens[offsets[s + 1] - 1]; every
        source lists `always`."""
        self._offsets, self._tokens, self._always = offsets, tokens, always

    def of(self, source: IntArray) -> IntArray:
        """Return the tokens on the shortlist of a source, in ascending order."""
        bounds = self._offsets[source].tolist(), self._offsets[source + 1].tolist()
        lists = [self._tokens[first:last] for first, last in zip(*bounds, strict=True)]
        return np.unique(np.concatenate([self._always, *lists]))


def read_shortlists(path: Path, config: Config, needed: Sequence[int]) -> Shortlists:
    """Return the shortlists. Raise StartupError if they contradict the vocabularies, or if one may
    lack an id of `needed`."""
    check_size(path, LARGEST_REFERENCE)
    try:
        arrays = read_arrays(path)
        offsets, tokens, always = (
            arrays[name].astype(np.int64) for name in ("offsets", "tokens", "always")
        )
    except KeyError as error:
        raise StartupError(f"{path} lacks the array {error}: convert the model again") from error
    except Exception as error:  # zipfile, zlib and NumPy raise errors of a dozen classes
        raise StartupError(f"{path} cannot be used: {error}: convert the model again") from error
    if not (
        offsets.shape == (config.source_vocab_size + 1,)
        and (np.diff(offsets) >= 0).all()
        and (offsets[0], offsets[-1]) == (0, tokens.size)
    ):
        raise StartupError(
            f"{path}: offsets must be {config.source_vocab_size + 1} numbers that ascend from 0 to"
            f" {tokens.size}, the number of tokens: convert the model again"
        )
    for name, ids in (("tokens", tokens), ("always", always)):
        if ids.ndim != 1 or (
            ids.size and not 0 <= ids.min() <= ids.max() < config.target_vocab_size
        ):
            raise StartupError(
                f"{path}: {name} must be ids below {config.target_vocab_size}: convert the model"
                " again"
            )
    if missing := {*needed}.difference(always.tolist()):
        raise StartupError(
            f"{path}: always lacks {min(missing)}, which ends targets: convert the model again"
        )
    return Shortlists(offsets, tokens, always)
