"""Which token comes next. Sees log-probs and ids, never a cache or a tensor of the network.

Axes: W the rows of one source, K the candidates a row.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

FinishReason = Literal["eos", "length"]


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """Every generated id, eos included when finish_reason is eos, and the log-prob of each."""

    token_ids: list[int]
    log_probs: list[float]
    finish_reason: FinishReason

    @property
    def score(self) -> float:
        """Sum of log-probs / number of tokens ** length_penalty, the penalty being 1."""
        return sum(self.log_probs) / len(self.token_ids)


class Choice(NamedTuple):
    """What each row reads next (W,), and which row it continues (W,)."""

    tokens: NDArray[np.int64]
    parents: NDArray[np.int64]


class Search:
    """Greedy decoding of one source.

    `forced_ids` follow the start id whatever the model predicts; then at most `max_new_tokens`
    are generated.
    """

    width = 1
    candidates = 1

    def __init__(self, forced_ids: Sequence[int], eos_id: int, max_new_tokens: int) -> None:
        self._forced = list(forced_ids)
        self._eos_id = eos_id
        self._max_new_tokens = max_new_tokens
        self._token_ids: list[int] = []
        self._log_probs: list[float] = []
        self.hypothesis: Hypothesis | None = None

    def advance(self, log_probs: NDArray[np.float32], ids: NDArray[np.int64]) -> Choice:
        """(W, K) best candidates, best first -> the next step. Sets `hypothesis` at the end."""
        if self._forced:
            return self._read(self._forced.pop(0))
        token = int(ids[0, 0])
        self._token_ids.append(token)
        self._log_probs.append(float(log_probs[0, 0]))
        if token == self._eos_id:
            self.hypothesis = Hypothesis(self._token_ids, self._log_probs, "eos")
        elif len(self._token_ids) == self._max_new_tokens:
            self.hypothesis = Hypothesis(self._token_ids, self._log_probs, "length")
        return self._read(token)

    def _read(self, token: int) -> Choice:
        return Choice(np.array([token]), np.arange(self.width))
