"""Choose the attention that agrees best with occlusion (docs/adr/0027)."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import product
from math import log
from typing import Any

import numpy as np

from model.export.alignment.occlusion import Labels
from model.export.checks.compare import Array

RIGHT = 0.5  # least agreement: below it, more pairs would be wrong than right
DOUBT = 1e-3  # most probability that chance makes the best candidate agree as often
NEAR = 0.05  # the best candidate may agree so much more often than a head that was perhaps guided


@dataclass(frozen=True, slots=True)
class Candidate:
    """The mean of these heads of these layers. With shift 1, a token has the row of the step that
    reads it, instead of the one that predicts it."""

    layers: tuple[int, ...]
    heads: tuple[int, ...]
    shift: int

    def aligned(self, weights: Array, labels: Labels) -> Array:
        """Return the source token with the largest weight of each labelled target token, given the
        weights (L, H, T + 1, S) of a pair."""
        picked = weights[list(self.layers)][:, list(self.heads)].mean((0, 1))  # (T + 1, S)
        rows = picked[labels.rows + self.shift][:, labels.text]
        return labels.text[rows.argmax(-1)]


@dataclass(frozen=True, slots=True)
class Ranked:
    """A candidate, and the share of labelled tokens at which it agrees with occlusion."""

    candidate: Candidate
    agreement: float

    def describe(self) -> dict[str, Any]:
        found = {**asdict(self.candidate), "measure": "weight"}
        return {**found, "agreement": round(self.agreement, 3)}


@dataclass(frozen=True, slots=True)
class Choice:
    """The two candidates that agree best on the `tokens` that are labelled, of all `candidates`.
    `sources` have such tokens. `chance` is how often a random token of the text is the right one.
    `guided` is the candidate that training guided to alignments: `surely`, or else perhaps.
    """

    ranked: tuple[Ranked, ...]
    tokens: int
    sources: int
    chance: float
    candidates: int
    guided: Ranked | None = None
    surely: bool = True

    @property
    def is_guided(self) -> bool:
        """Whether the guided candidate is the alignment: it was surely guided, or agrees about as
        often as the best, which holds."""
        if self.guided is None:
            return False
        near = self.guided.agreement >= self.ranked[0].agreement - NEAR
        return self.surely or (self.holds and near)

    @property
    def chosen(self) -> Ranked:
        return self.guided if self.guided and self.is_guided else self.ranked[0]

    @property
    def best_other(self) -> Ranked:
        """The best candidate that is not the chosen one."""
        best, second = self.ranked
        return second if self.chosen.candidate == best.candidate else best

    @property
    def holds(self) -> bool:
        """Whether the best one may be called an alignment: it is right more often than wrong, and
        chance would hardly make the best of so many candidates agree as often.

        A source counts as one throw of chance, because its tokens may all be alike.
        """
        best = self.ranked[0].agreement
        if not self.tokens or best < RIGHT or best <= self.chance:
            return False
        return self.sources * divergence(best, self.chance) >= log(self.candidates / DOUBT)


def divergence(share: float, chance: float) -> float:
    """Return the Kullback-Leibler divergence of two coins in nats. Of n throws of a coin with
    `chance`, at least `share` succeed with a probability of at most exp(-n divergence): Chernoff
    (1952)."""
    parts = ((share, chance), (1 - share, 1 - chance))
    return sum(p * log(p / q) for p, q in parts if p)


def candidates(layers: int, heads: int) -> Iterator[Candidate]:
    """Yield the mean of all heads of all layers and of each layer, and every head. Of equals, the
    first is chosen: a mean is less likely to be best by chance than one of many heads."""
    every_head = tuple(range(heads))
    groups = [(tuple(range(layers)), every_head)]
    groups += [((layer,), every_head) for layer in range(layers) if layers > 1]
    groups += [((layer,), (head,)) for layer, head in product(range(layers), every_head)]
    for shift in (0, 1):
        yield from (Candidate(*group, shift) for group in dict.fromkeys(groups))


def choose(
    attended: Iterable[tuple[Array, Labels]],
    layers: int,
    heads: int,
    guided: Candidate | None = None,
    surely: bool = True,
) -> Choice:
    """Return the candidates that agree best with the labels of the pairs, given the weights
    (L, H, T + 1, S) of each, and how often the one does that training guided, `surely` or not."""
    offered = [*candidates(layers, heads)]
    agreed, tokens, sources, chance = np.zeros(len(offered)), 0, 0, 0.0
    for weights, labels in attended:
        if not len(labels.rows):
            continue
        sources += 1
        tokens += len(labels.rows)
        chance += len(labels.rows) / len(labels.text)
        right = [(each.aligned(weights, labels) == labels.columns).sum() for each in offered]
        agreed += np.array(right)
    shares = agreed / max(1, tokens)
    best = np.argsort(-shares, kind="stable")[:2]
    every = [Ranked(*each) for each in zip(offered, shares.tolist(), strict=True)]
    given = next((each for each in every if each.candidate == guided), None)
    ranked = tuple(every[i] for i in best)
    chance /= max(1, tokens)
    return Choice(ranked, tokens, sources, chance, len(offered), given, surely)
