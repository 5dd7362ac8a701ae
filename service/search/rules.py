"""Decide which tokens may follow in a row, under the options of its request.

`generated` holds the ids chosen so far; `history` is all that the decoder has read: the start
ids, the target prefix and `generated`. Axes: V vocabulary, N the tokens under consideration (the
whole vocabulary, or a row's candidates).
"""

from collections.abc import Collection, Iterator, Sequence
from copy import copy
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from service.arrays import FloatArray, IntArray
from service.search.options import SearchOptions
from service.search.phrases import Phrases
from service.search.protocol import ALTERNATIVE, DEAD, Alternatives, Detokenize
from service.search.sequences import Sequences, following, ngrams, repeating, suppressed, trie_of

ENDING_TEXTS = 64  # of a row's best tokens, how many may complete stop texts at the same step
MOST_CANDIDATES = 128  # candidates of a row; a row that needs more reads all logits


class Allowed(NamedTuple):
    """Tokens that may come next, and the most probable of all, allowed or not, if the request asked
    for them."""

    log_probs: FloatArray  # (N,)
    ids: IntArray  # (N,)
    best: Alternatives | None  # (N,)
    is_ranked: bool = False  # whether they come best first, then those of `needed`

    def most_probable(self, count: int, needed: Sequence[int] = ()) -> list[tuple[int, float]]:
        """Return the `count` most probable tokens with their log-probs, and all those of `needed`
        that are allowed."""
        if self.is_ranked:
            read = slice(None if needed else count)
            pairs = [*zip(self.ids[read].tolist(), self.log_probs[read].tolist(), strict=True)]
            return pairs[:count] + [pair for pair in pairs[count:] if pair[0] in needed]
        best = most_probable(self.log_probs, self.ids, count)
        if others := {*needed}.difference(token for token, _ in best):
            places = np.isin(self.ids, [*others])  # (N,)
            pairs = self.ids[places].tolist(), self.log_probs[places].tolist()
            best += zip(*pairs, strict=True)
        return best


class Rules:
    """Tokens that a request allows next, and tokens that end a hypothesis."""

    def __init__(
        self,
        options: SearchOptions,
        start: Sequence[int],
        eos_ids: Sequence[int],
        detokenize: Detokenize,
    ) -> None:
        self._options = options
        self._given = (*start, *options.target_prefix)
        self._eos_ids = eos_ids
        self._detokenize = detokenize
        self._bans = bool(
            options.suppress_tokens
            or options.suppress_sequences
            or options.min_new_tokens
            or options.no_repeat_ngram_size
            or options.encoder_no_repeat_ngram_size
        )
        self._penalizes = {options.repetition_penalty, options.encoder_repetition_penalty} != {1}
        acts = self._bans or self._penalizes
        self._renormalizes = options.renormalize and acts and not options.allowed_targets
        self._suppressed = np.array(options.suppress_tokens, np.int64)
        # All of them where candidates suffice; with more, all logits are read
        self._few_suppressed = frozenset(options.suppress_tokens[:MOST_CANDIDATES])
        self._sequences = [suppressed(options.suppress_sequences)]  # of which none is completed
        self._source: frozenset[int] = frozenset()  # tokens of the source, if they are penalized
        self._trie = trie_of(options.allowed_targets)
        # W beams that go on may continue one row, which may end by each eos
        self.least = 1 if options.beam_size == 1 else options.beam_size + len(eos_ids)
        self.phrases = Phrases(options.required, detokenize) if options.required else None
        self.stops = bool(options.stop or options.stop_ids)
        self.most_ending = len(options.stop_ids) + (ENDING_TEXTS if options.stop else 0)
        self.takes_best = not (  # the best candidates can be taken as they are
            self._bans
            or self._penalizes
            or self.stops
            or options.allowed_targets
            or options.samples
            or options.top_log_probs
        )
        # besides the candidates, if these suffice otherwise
        self.reads_logits = bool(options.entropies or options.required)
        self.plain = self.takes_best and not self.reads_logits

    def reading(self, source: IntArray) -> "Rules":
        """Return the rules for a source of these ids (S,): the same ones if no option reads it."""
        options = self._options
        if not options.reads_source:
            return self
        rules, ids = copy(self), source.tolist()
        of_source = Sequences(ngrams(ids, options.encoder_no_repeat_ngram_size))
        rules._sequences = [*self._sequences, of_source]
        if options.encoder_repetition_penalty != 1:
            rules._source = frozenset(ids)
        return rules

    def candidates(self, length: int) -> int | None:
        """Return how many of the most probable tokens a row needs after `length` generated ones.

        None means all logits. The answer depends on this request only, not on its batch.
        """
        options = self._options
        unbounded = options.samples and not options.top_k
        # A beam search penalizes log-probs: these penalties lower some tokens and raise none
        lowers = options.repetition_penalty >= 1 >= options.encoder_repetition_penalty
        lowers = lowers and options.beam_size > 1
        if options.allowed_targets or unbounded or self._renormalizes:
            return None
        if self._penalizes and not lowers:
            return None
        count = max(self.least, options.top_k, options.top_log_probs)
        seen = len(self._given) + length  # at most this many different tokens
        if self._penalizes:
            count += len(self._source) + (seen if options.repetition_penalty != 1 else 0)
        if self._bans:  # the best may be suppressed tokens, eos, and one per earlier position
            repeated = seen if options.no_repeat_ngram_size else 0
            count += len(options.suppress_tokens) + len(self._eos_ids) + repeated
            count += sum(each.most for each in self._sequences)
        if options.beam_size > 1:
            count += self.most_ending  # W beams must continue in addition to those that stop
        # A power of two: the runtime binds buffers for each count, so few counts should occur
        count = 1 << (count - 1).bit_length()
        return count if count <= MOST_CANDIDATES else None

    def allowed(
        self,
        log_probs: FloatArray,
        ids: IntArray,
        logits: FloatArray | None,
        generated: list[int],
        needed: Sequence[int] = (),
    ) -> Allowed:
        """Return the tokens that may follow in a row, given its candidates (K,) or logits (V,).

        Candidates come best first. Other rows of the batch may need more of them, or the logits.
        This row uses only as many as it needs itself, so that its answer never depends on others.
        Tokens of `needed` are considered even if they are not among the candidates.
        """
        options = self._options
        history = [*self._given, *generated]
        count = self.candidates(len(generated))
        if count is None:
            assert logits is not None  # the search asked for them
            ids = np.arange(len(logits))  # (V,)
            log_probs = self._penalized(logits, history)  # (V,)
        else:
            log_probs, ids = with_tokens(log_probs[:count], ids[:count], logits, needed)  # (N,)
            if self._penalizes:
                log_probs = self._penalize(log_probs, history, ids)  # (N,)
        best = None
        if options.top_log_probs:
            best = find_alternatives(log_probs, ids, options.top_log_probs)
        if options.allowed_targets:
            ids = np.array(following(self._trie, generated), np.int64)  # (N,)
            log_probs = log_probs[ids]  # (N,)
        elif self._bans:
            banned = self._banned(history, len(generated))
            if count is None:
                allowed = np.ones(len(ids), bool)  # (V,); ids are indices, so no search is needed
                allowed[self._suppressed] = False
                allowed[[*banned]] = False
            else:
                allowed = ~are_in(banned | self._few_suppressed, ids)  # (N,)
            log_probs, ids = log_probs[allowed], ids[allowed]
        if self._renormalizes and log_probs.max(initial=DEAD) > DEAD:  # some are possible
            log_probs = log_softmax(log_probs)  # (N,)
        is_ranked = count is not None and not self._penalizes
        return Allowed(log_probs, ids, best, is_ranked)

    def ends(self, generated: list[int]) -> bool:
        """Return whether the last generated token completes a stop text or is a stop id."""
        if generated[-1] in self._options.stop_ids:
            return True
        if not self._options.stop:
            return False
        text = self._detokenize(generated)
        return any(stop in text for stop in self._options.stop)

    def _penalized(self, logits: FloatArray, history: list[int]) -> FloatArray:
        """Return log-probs (V,) under the penalties.

        Like Hugging Face, a beam search penalizes log-probs, whose sum is then no longer 1.
        """
        if self._options.beam_size > 1:
            return self._penalize(log_softmax(logits), history)
        return log_softmax(self._penalize(logits, history))

    def _penalize(
        self, values: FloatArray, history: list[int], ids: IntArray | None = None
    ) -> FloatArray:
        """Return the logits or log-probs (N,) of these ids, or of all, under the penalties."""
        options = self._options
        if options.encoder_repetition_penalty != 1:
            places = indices_of(self._source, ids)
            values = penalize(values, places, 1 / options.encoder_repetition_penalty)
        if options.repetition_penalty != 1:
            values = penalize(values, indices_of({*history}, ids), options.repetition_penalty)
        return values

    def _banned(self, history: list[int], length: int) -> set[int]:
        """Return the tokens that are banned at this step, in addition to those that always are."""
        banned = repeating(history, self._options.no_repeat_ngram_size)
        for sequences in self._sequences:
            banned |= sequences.completing(history)
        if length < self._options.min_new_tokens:
            banned.update(self._eos_ids)
        return banned


def rules_of(
    options: Sequence[SearchOptions],
    starts: Sequence[Sequence[int]],
    sources: Sequence[IntArray],
    eos_ids: Sequence[int],
    detokenize: Detokenize,
) -> Iterator[tuple[SearchOptions, Sequence[int], Rules]]:
    """Yield the options, start ids and rules of each source. The sources of one request share one
    options object, and so share the rules: a trie of allowed targets can be large."""
    made: dict[tuple[int, tuple[int, ...]], Rules] = {}
    for each, start, source in zip(options, starts, sources, strict=True):
        key = id(each), tuple(start)
        if key not in made:
            made[key] = Rules(each, start, eos_ids, detokenize)
        yield each, start, made[key].reading(source)


def with_tokens(
    log_probs: FloatArray, ids: IntArray, logits: FloatArray | None, tokens: Sequence[int]
) -> tuple[FloatArray, IntArray]:
    """Return candidates (N,), best first, followed by those of the tokens that they lack."""
    if not tokens:
        return log_probs, ids
    assert logits is not None  # the search asked for them
    held = {*ids.tolist()}
    others = [token for token in tokens if token not in held]
    of_others = log_probs[0] + (logits[others] - logits[ids[0]])
    return np.concatenate([log_probs, of_others]), np.concatenate([ids, np.array(others, np.int64)])


def entropy(logits: FloatArray | None) -> float:
    """Return the entropy in nats of the model's distribution, given a row's logits (V,), which may
    be -inf. Penalties, bans and the temperature of a request do not change it."""
    assert logits is not None  # the search asked for them
    shifted = logits - logits.max()  # (V,)
    probs = np.exp(shifted)  # (V,)
    total = probs.sum(dtype=np.float64)
    products = np.multiply(probs, shifted, out=np.zeros_like(probs), where=probs > 0)  # (V,)
    return float(np.log(total) - products.sum(dtype=np.float64) / total)


def log_softmax(logits: FloatArray) -> FloatArray:
    """(..., V) -> (..., V)."""
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def penalize(values: FloatArray, places: IntArray, penalty: float) -> FloatArray:
    """Return logits or log-probs (N,) with those at `places`, which hold tokens seen earlier,
    divided by the penalty where positive, multiplied where negative (Keskar et al. 2019, as in
    Hugging Face)."""
    penalized = values.copy()  # the values are a buffer of the runtime
    seen = values[places]
    penalized[places] = np.where(seen > 0, seen / penalty, seen * penalty)
    return penalized


def are_in(tokens: Collection[int], ids: IntArray) -> NDArray[np.bool_]:
    """Return which of a row's candidates (N,) are among the tokens, a set. For a few tokens, it
    takes a tenth of the time of np.isin."""
    return np.array([token in tokens for token in ids.tolist()], bool)


def indices_of(tokens: Collection[int], ids: IntArray | None) -> IntArray:
    """Return the indices of the tokens, a set, among these ids (N,), or among all ids."""
    return np.array([*tokens], np.int64) if ids is None else np.flatnonzero(are_in(tokens, ids))


def find_alternatives(log_probs: FloatArray, ids: IntArray, count: int) -> Alternatives:
    """Return the `count` most probable tokens (N,), of which those that are not on the shortlist of
    the source are impossible."""
    order = best_first(log_probs, count)
    best = np.zeros(count, ALTERNATIVE)
    best["log_prob"] = DEAD
    best["id"][: len(order)], best["log_prob"][: len(order)] = ids[order], log_probs[order]
    return best


def most_probable(log_probs: FloatArray, ids: IntArray, count: int) -> list[tuple[int, float]]:
    """Return fewer if the others are impossible: they are not on the shortlist of the source."""
    order = best_first(log_probs, count)
    order = order[log_probs[order] > DEAD]
    return list(zip(ids[order].tolist(), log_probs[order].tolist(), strict=True))


def best_first(values: NDArray[np.floating], count: int) -> IntArray:
    """Return the indices of the `count` >= 1 largest values (N,), without sorting the others."""
    if count < len(values):
        largest = np.argpartition(values, len(values) - count)[-count:]
        return largest[np.argsort(-values[largest], kind="stable")]
    return np.argsort(-values, kind="stable")
