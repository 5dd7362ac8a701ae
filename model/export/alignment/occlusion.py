"""Which source token a target token depends on: the one whose replacement costs it most.

Zeiler and Fergus, "Visualizing and Understanding Convolutional Networks" (2014), section 4.2, on
tokens. It needs neither gradients nor alignments made by people, and it is what the model does, not
what it looks at.
"""

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from math import log

import numpy as np

from model.export.alignment.graphs import Graphs, Pair
from model.export.checks.compare import Array

CLEAR = log(2)  # nats


@dataclass(frozen=True, slots=True)
class Labels:
    """The target tokens of a pair for which occlusion is clear (N,), the source token that each of
    them depends on (N,), and the places of all source tokens that are text."""

    rows: Array
    columns: Array
    text: Array


def occlude(
    graphs: Graphs,
    pairs: Sequence[Pair],
    unknown_id: int | None,
    specials: tuple[Container[int], Container[int]],
) -> Iterator[Labels]:
    """Yield the labels of each pair.

    Each source token in turn is replaced by `unknown_id`, which the model was trained to read as
    any text. Without such an id, a random token of all sources takes its place: an id or padding
    that the model has never seen there would do more than take a token away. `specials` of the
    source are not replaced, those of the target get no label.
    """
    texts = [text_of(pair.source, specials[0]) for pair in pairs]
    ids = [np.array(pair.source)[text] for pair, text in zip(pairs, texts, strict=True)]
    fill = Fill(np.concatenate(ids), unknown_id)
    copies = [fill.copies(pair.source, text) for pair, text in zip(pairs, texts, strict=True)]
    for pair, text, log_probs in zip(pairs, texts, graphs.score(copies, pairs), strict=True):
        losses = (log_probs[0] - log_probs[1:]).T  # (T, N)
        rows = np.intersect1d(clear(losses), text_of(pair.target, specials[1]))
        yield Labels(rows, text[losses[rows].argmax(1)], text)


def text_of(ids: Sequence[int], specials: Container[int]) -> Array:
    """Return the places of the tokens that are text."""
    return np.array([i for i, each in enumerate(ids) if each not in specials], np.int64)


def clear(losses: Array) -> Array:
    """Return the rows of (T, N) whose largest loss is clear.

    Without this source token the target token is at most half as probable as with all of them, and
    as without any other one. Elsewhere no source token matters, or several do alike, and the
    largest loss is chance: it would hide the difference between good and bad attention.
    """
    if losses.shape[1] < 2:  # there is nothing to choose from
        return np.zeros(0, np.int64)
    ranked = np.sort(losses, axis=1)
    best, second = ranked[:, -1], ranked[:, -2].clip(0)
    return np.flatnonzero(best - second >= CLEAR)


class Fill:
    """Ids that take the place of a source token."""

    def __init__(self, pool: Array, unknown_id: int | None) -> None:
        self._pool, self._unknown_id = pool, unknown_id
        self._random = np.random.default_rng(0)

    def copies(self, source: Sequence[int], text: Array) -> Array:
        """Return a source, and copies of it in which one token of the text each is replaced."""
        copies = np.array([source] * (len(text) + 1))
        for copy, place in zip(copies[1:], text, strict=True):
            copy[place] = self._other(copy[place])
        return copies

    def _other(self, token: int) -> int:
        if self._unknown_id is not None:
            return self._unknown_id
        others = self._pool[self._pool != token]
        return int(self._random.choice(others)) if others.size else token
