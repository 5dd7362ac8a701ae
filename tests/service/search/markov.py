"""A language in which every hypothesis can be listed."""

import numpy as np

from service.search.beam import BeamSearch
from service.search.greedy import GreedySearch
from service.search.options import SearchOptions
from service.search.protocol import Candidates

EOS = 2
NO_SOURCE = np.zeros(0, np.int64)


def listed(hypotheses):
    """Return hypotheses that can be compared: with lists in place of arrays."""
    return [
        each._replace(top_log_probs=each.top_log_probs.tolist())
        if each.top_log_probs is not None
        else each
        for each in hypotheses
    ]


class Markov:
    """A language of a few tokens, each of which depends on the one before; 0 starts it."""

    detokenize = str

    def __init__(self, seed, size=5, eos_ids=(EOS,)):
        self.size, self.eos_ids = size, eos_ids
        logits = 2 * np.random.default_rng(seed).standard_normal((size, size))
        self.logits = logits.astype(np.float32)
        self.log_probs = logits - np.log(np.exp(logits).sum(1, keepdims=True))

    def search(self, forced=(), source=NO_SOURCE, **options):
        """Decode one source twice, the second time two steps later, and return its hypotheses."""
        both = [SearchOptions(**options)] * 2
        first, second = self.decode(both, forced, joins=[0, 2], sources=[source] * 2)
        assert listed(first) == listed(second)
        return first

    def decode(self, requests, forced=(), joins=None, sources=None):
        """Decode requests in one batch, which each joins at its step, and return the hypotheses of
        each. All requests must have as many rows and the same kind of search."""
        kind, rows = BeamSearch, requests[0].beam_size
        if rows == 1:
            kind, rows = GreedySearch, requests[0].num_hypotheses
        search = kind(rows, self.eos_ids, self.detokenize)
        joins, sources = joins or [0] * len(requests), sources or [NO_SOURCE] * len(requests)
        tokens, found, live = np.zeros(0, np.int64), {}, []
        for step in range(100):
            if new := [i for i, join in enumerate(joins) if join == step]:
                starts = [(0, *forced)] * len(new)
                search.insert([requests[i] for i in new], starts, [sources[i] for i in new])
                tokens = np.concatenate([tokens, np.zeros(rows * len(new), np.int64)])
                live += new
            if not live:
                continue
            choice = search.advance(self.candidates(tokens, *search.needed))
            found |= {live[i]: search.hypotheses(i) for i in choice.ended}
            keep = np.array([i for i in range(len(live)) if i not in choice.ended], int)
            search.compact(keep)
            live = [live[i] for i in keep]
            tokens = choice.tokens.reshape(-1, rows)[keep].ravel()
            if len(found) == len(requests):
                return [found[i] for i in range(len(requests))]
        raise AssertionError("the search does not end")

    def candidates(self, tokens, k, logits):
        """Log-probs are rounded from float64 as a graph's may be: the search's own log-softmax of
        the float32 logits differs from them in the last bits."""
        log_probs = self.log_probs[tokens]  # (R, V)
        ids = np.argsort(-log_probs, axis=1, kind="stable")[:, :k]
        best = np.take_along_axis(log_probs, ids, 1).astype(np.float32)
        return Candidates(best, ids, self.logits[tokens] if logits else None)

    def all_hypotheses(self, limit, penalty, ends=(EOS,), forced=(), prefix=()):
        """Return every sequence that ends or reaches the limit, with its score, best first."""
        first = [0, *forced, *prefix][-1]
        going, ended = [([], 0.0)], []
        for _ in range(limit):
            longer = [
                ([*ids, token], total + self.log_probs[ids[-1] if ids else first, token])
                for ids, total in going
                for token in range(self.size)
            ]
            ended += [each for each in longer if each[0][-1] in ends]
            going = [each for each in longer if each[0][-1] not in ends]
        scored = [
            (total / (len(forced) + len(ids)) ** penalty, ids) for ids, total in ended + going
        ]
        return sorted(scored, key=lambda each: -each[0])
