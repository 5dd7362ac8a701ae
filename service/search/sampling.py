"""Draw a token at random from those that may follow."""

import numpy as np
from numpy.typing import NDArray

from service.arrays import FloatArray
from service.search.options import SearchOptions
from service.search.rules import Allowed


def warp(
    log_probs: FloatArray, temperature: float, top_k: int, top_p: float
) -> NDArray[np.float64]:
    """Return the probabilities (N,) to draw from, given the log-probs (N,) of the tokens.

    The temperature sharpens (below 1) or flattens (above 1) them. Then only the `top_k` most
    probable tokens remain (0: all), and of those the fewest whose sum reaches `top_p`.
    """
    with np.errstate(over="ignore"):  # a tiny temperature sends all but the best to -inf
        scaled = (log_probs.astype(np.float64) - log_probs.max()) / temperature  # (N,)
    if not top_k and top_p == 1:
        probs = np.exp(scaled)  # (N,)
        return probs / probs.sum()
    order = np.argsort(-scaled, kind="stable")  # (N,)
    ranked = np.exp(scaled[order] - scaled[order[0]])  # (N,), best first
    if top_k:
        ranked[top_k:] = 0
    ranked /= ranked.sum()
    ranked[np.cumsum(ranked) - ranked >= top_p] = 0  # tokens after the sum has reached top_p
    probs = np.empty_like(ranked)  # (N,)
    probs[order] = ranked / ranked.sum()
    return probs


def draw(allowed: Allowed, options: SearchOptions, random: np.random.Generator) -> int:
    """Return the index in `allowed` of a token drawn by inverse transform sampling.

    Probabilities are summed in the order of ids, not of rank: rounding can rank near-ties
    differently on another machine, which must not change a seeded draw.
    """
    by_id = np.argsort(allowed.ids, kind="stable")  # (N,); a stable sort is fast on sorted ids
    probs = warp(allowed.log_probs, options.temperature, options.top_k, options.top_p)  # (N,)
    probs = probs[by_id]  # (N,)
    cumulative = np.cumsum(probs)  # (N,)
    drawn = np.searchsorted(cumulative, random.random() * cumulative[-1], side="right")
    last = np.flatnonzero(probs)[-1]  # rounding must not draw a token of probability 0
    return int(by_id[min(int(drawn), int(last))])
