"""What may follow what was generated: the options that change it, each by itself and all together.

Pure functions of one row: `generated` and `history` (the target prefix before it) are lists of ids,
log-probs and logits are vectors over the vocabulary or over some candidates of it.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from service.arrays import FloatArray, IntArray
from service.search.options import SearchOptions
from service.search.protocol import Detokenize

Trie = dict[int, "Trie"]

ENDING_TEXTS = 64  # tokens that may complete a text to stop at, among the best of a row
MOST_CANDIDATES = 128  # of a row; where more are needed all logits are read


class Allowed(NamedTuple):
    """Tokens that may come next, with their log-probs, in no order; and the best of all tokens,
    allowed or not."""

    log_probs: FloatArray
    ids: IntArray
    best: list[tuple[int, float]]


class Rules:
    """The options of a source, or of all sources that share them, and what ends a hypothesis."""

    def __init__(self, options: SearchOptions, eos_id: int, text: Detokenize) -> None:
        self._options = options
        self._eos_id = eos_id
        self._text = text
        self._bans = bool(
            options.suppress_tokens or options.min_new_tokens or options.no_repeat_ngram_size
        )
        self._penalizes = options.repetition_penalty != 1
        self._suppressed = np.array(options.suppress_tokens, np.int64)
        self._trie = trie_of(options.allowed_targets)
        self.stops = bool(options.stop or options.stop_ids)
        self._least = 1 if options.beam_size == 1 else 2 * options.beam_size
        self.most_ending = len(options.stop_ids) + (ENDING_TEXTS if options.stop else 0)
        self.plain = not (
            self._bans
            or self._penalizes
            or self.stops
            or options.allowed_targets
            or options.samples
            or options.top_log_probs
        )

    def candidates(self, length: int) -> int | None:
        """Return how many of a row's most probable tokens are needed after `length` generated ones.

        None means all logits. The answer depends on the request alone, never on its neighbours.
        """
        options = self._options
        unbounded = options.samples and not options.top_k
        if self._penalizes or options.allowed_targets or unbounded:
            return None
        count = max(self._least, options.top_k)
        if self._bans:
            repeated = len(options.target_prefix) + length if options.no_repeat_ngram_size else 0
            count += len(options.suppress_tokens) + 1 + repeated
        if options.beam_size > 1:
            count += self.most_ending  # others are to go on
        count = 1 << (max(count, options.top_log_probs) - 1).bit_length()
        return count if count <= MOST_CANDIDATES else None  # few sizes: each is tied to memory

    def offer(
        self, log_probs: FloatArray, ids: IntArray, logits: FloatArray | None, generated: list[int]
    ) -> Allowed:
        """Return the tokens that may follow in a row, from its candidates, best first, or logits.

        A neighbour can make a batch read more candidates, or logits. A row looks at no more than it
        asked for, so that no bit of its answer depends on its neighbours.
        """
        options = self._options
        history = [*options.target_prefix, *generated]
        count = self.candidates(len(generated))
        if count is None:
            assert logits is not None  # the search asked for them
            ids = np.arange(len(logits))
            log_probs = log_softmax(penalize(logits, history, options.repetition_penalty))
        else:
            log_probs, ids = log_probs[:count], ids[:count]
        best = most_probable(log_probs, ids, options.top_log_probs)
        if options.allowed_targets:
            ids = np.array(following(self._trie, generated), np.int64)
            log_probs = log_probs[ids]
        elif self._bans:
            banned = repeating(history, options.no_repeat_ngram_size)
            if len(generated) < options.min_new_tokens:
                banned.add(self._eos_id)
            banned_ids = np.concatenate([self._suppressed, np.array([*banned], np.int64)])
            if count is not None:
                may_follow = ~np.isin(ids, banned_ids)
            else:
                may_follow = np.ones(len(ids), bool)
                may_follow[banned_ids] = False
            log_probs, ids = log_probs[may_follow], ids[may_follow]
        return Allowed(log_probs, ids, best)

    def ends(self, generated: list[int]) -> bool:
        """Whether its last token completes a stop."""
        if generated[-1] in self._options.stop_ids:
            return True
        if not self._options.stop:
            return False
        text = self._text(generated)
        return any(stop in text for stop in self._options.stop)


def rules_of(
    options: Sequence[SearchOptions], eos_id: int, text: Detokenize
) -> Iterator[tuple[SearchOptions, Rules]]:
    """Those of each source; sources of one request share their options, and so their rules."""
    made: dict[int, Rules] = {}
    for each in options:
        if id(each) not in made:
            made[id(each)] = Rules(each, eos_id, text)
        yield each, made[id(each)]


def log_softmax(logits: FloatArray) -> FloatArray:
    shifted = logits - logits.max()
    return shifted - np.log(np.exp(shifted).sum())


def penalize(logits: FloatArray, history: Collection[int], penalty: float) -> FloatArray:
    """Logits of tokens that have occurred are divided by the penalty where positive, else
    multiplied (Keskar et al. 2019, as Hugging Face has it)."""
    if penalty == 1 or not history:
        return logits
    seen = np.unique(list(history))
    penalized = logits.copy()
    penalized[seen] = np.where(logits[seen] > 0, logits[seen] / penalty, logits[seen] * penalty)
    return penalized


def repeating(history: Sequence[int], size: int) -> set[int]:
    """Tokens that would complete an n-gram of this size for the second time; 0: none."""
    if not size or len(history) < size:
        return set()
    last = list(history[len(history) - size + 1 :])
    starts = range(len(history) - size + 1)
    return {history[i + size - 1] for i in starts if list(history[i : i + size - 1]) == last}


def following(trie: Trie, generated: Sequence[int]) -> list[int]:
    """What continues one of the targets in it."""
    node = trie
    for token in generated:
        node = node[token]
    return sorted(node)


def trie_of(targets: Sequence[Sequence[int]]) -> Trie:
    root: Trie = {}
    for target in targets:
        node = root
        for token in target:
            node = node.setdefault(token, {})
    return root


def most_probable(log_probs: FloatArray, ids: IntArray, count: int) -> list[tuple[int, float]]:
    order = best_first(log_probs, count)
    return list(zip(ids[order].tolist(), log_probs[order].tolist(), strict=True))


def best_first(values: NDArray[np.floating], count: int) -> IntArray:
    """Places of the largest, without sorting all."""
    if count < len(values):
        places = np.argpartition(-values, count)[:count]
        return places[np.argsort(-values[places], kind="stable")]
    return np.argsort(-values, kind="stable")
