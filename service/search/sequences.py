"""Sequences of tokens: those that must not be completed, such as n-grams that may not repeat, and
those of which a target must be one."""

from collections.abc import Iterable, Sequence
from functools import lru_cache

Trie = dict[int, "Trie"]

NONE: frozenset[int] = frozenset()


class Sequences:
    """Sequences by all their tokens but the last, so that many are found as fast as few."""

    def __init__(self, sequences: Iterable[Sequence[int]]) -> None:
        self._lasts: dict[tuple[int, ...], set[int]] = {}
        for *first, last in sequences:
            self._lasts.setdefault(tuple(first), set()).add(last)
        counts: dict[int, int] = {}
        for first, lasts in self._lasts.items():
            counts[len(first)] = max(len(lasts), counts.get(len(first), 0))
        self._lengths = sorted(counts)  # of `first`
        self.most = sum(counts.values())  # most tokens that may complete some at the same step

    def completing(self, history: Sequence[int]) -> set[int]:
        """Return the tokens that would complete a sequence whose other tokens end `history`."""
        found = set[int]()
        for length in self._lengths:
            found |= self._lasts.get(tuple(history[len(history) - length :]), NONE)
        return found

    def find(self, ids: Sequence[int]) -> Sequence[int]:
        """Return the first sequence in these ids; an empty one if they hold none."""
        for end, token in enumerate(ids):
            for length in self._lengths:
                if length <= end and token in self._lasts.get(tuple(ids[end - length : end]), NONE):
                    return ids[end - length : end + 1]
        return ()


@lru_cache(16)  # the searches of a request may differ in other options
def suppressed(sequences: tuple[tuple[int, ...], ...]) -> Sequences:
    return Sequences(sequences)


def ngrams(ids: Sequence[int], size: int) -> Iterable[tuple[int, ...]]:
    """Return the n-grams of this size; none if the size is 0."""
    return zip(*(ids[first:] for first in range(size)), strict=False)


def repeating(history: Sequence[int], size: int) -> set[int]:
    """Return the tokens that would repeat an n-gram of this size; none if the size is 0."""
    if not size or len(history) < size:
        return set()
    last = list(history[len(history) - size + 1 :])
    starts = range(len(history) - size + 1)
    return {history[i + size - 1] for i in starts if list(history[i : i + size - 1]) == last}


def trie_of(targets: Sequence[Sequence[int]]) -> Trie:
    root: Trie = {}
    for target in targets:
        node = root
        for token in target:
            node = node.setdefault(token, {})
    return root


def following(trie: Trie, generated: Sequence[int]) -> list[int]:
    """Return the tokens that come next in the targets of the trie that begin with `generated`."""
    node = trie
    for token in generated:
        node = node[token]
    return sorted(node)
