"""The tokens that targets of a language may have, and the graph that scores no others."""

from collections.abc import Callable, Collection
from pathlib import Path
from typing import NamedTuple

import numpy as np

from service.arrays import FloatArray, IntArray
from service.bundle.files import check_size
from service.bundle.manifest import Bundle, Manifest
from service.errors import StartupError
from service.runtime.outputs import scattered
from service.runtime.providers import LazyGraph, describe_graph
from service.runtime.reference import LARGEST_REFERENCE, read_arrays, reading
from service.runtime.signatures import check_signature, expected_of_list


class TargetList(NamedTuple):
    """Axes: N listed tokens, R rows, V vocabulary."""

    tokens: IntArray  # (N,), ascending
    vocab_size: int
    output: LazyGraph

    def holds(self, tokens: Collection[int]) -> bool:
        return not tokens or bool(np.isin([*tokens], self.tokens).all())

    def scatter(self, logits: FloatArray) -> FloatArray:
        """Return logits of all tokens (R, V) from those of the list (R, N)."""
        return scattered(logits, self.tokens, self.vocab_size)


def read_target_lists(
    bundle: Bundle, precision: str, open_output: Callable[[Path], LazyGraph]
) -> dict[tuple[int, ...], TargetList]:
    """Return the lists of a bundle, if there are any at this precision, by the ids of the language.
    Raise StartupError if one contradicts the model or its graph."""
    manifest = bundle.manifest
    if manifest.target_lists is None or precision not in manifest.target_lists.graphs:
        return {}
    files = manifest.target_lists.graphs[precision]
    tokens = read_tokens(bundle.path(manifest.target_lists.tokens), manifest, files)
    vocab_size = manifest.config.target_vocab_size
    lists: dict[tuple[int, ...], TargetList] = {}
    for code, listed in tokens.items():
        path = bundle.path(files[code])
        wanted = expected_of_list(manifest.config, len(listed))
        check_signature(path, describe_graph(path), "output", wanted)
        language = tuple(manifest.languages.target[code])
        lists[language] = TargetList(listed, vocab_size, open_output(path))
    return lists


def read_tokens(path: Path, manifest: Manifest, codes: Collection[str]) -> dict[str, IntArray]:
    """Return the tokens (N,) of each of these languages. Raise StartupError if they contradict the
    vocabulary, or lack one that ends targets."""
    check_size(path, LARGEST_REFERENCE)
    with reading(path, "convert the model again"):
        arrays = read_arrays(path)
        lists = {code: arrays[code].astype(np.int64) for code in codes}
    size = manifest.config.target_vocab_size
    for code, tokens in lists.items():
        ascends = tokens.ndim == 1 and tokens.size and (np.diff(tokens) > 0).all()
        if not (ascends and tokens[0] >= 0 and tokens[-1] < size):
            raise StartupError(
                f"{path}: {code} must be ids below {size} that ascend: convert the model again"
            )
        if missing := {*manifest.eos_ids}.difference(tokens.tolist()):
            raise StartupError(
                f"{path}: {code} lacks {min(missing)}, which ends targets: convert the model again"
            )
    return lists
