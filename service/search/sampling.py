"""Draw a token at random from those that may follow."""

import numpy as np
from numpy.typing import NDArray

from service.arrays import FloatArray, IntArray
from service.search.options import SearchOptions
from service.search.rules import Allowed, best_first

COLDEST = 1e-30  # a lower temperature would draw the same token, and divide by zero in float32
RANKED_FIRST = 128  # tokens that are ranked before all are sorted into bins
BINS, DEPTH = 4096, 16.0  # bins of log-probs; the last one holds all below the best minus DEPTH
BLOCK = 256  # probabilities whose sum one step of a draw skips


def warp(
    log_probs: FloatArray, temperature: float, top_k: int, top_p: float
) -> tuple[IntArray, NDArray[np.floating]]:
    """Return the places (M,) in `log_probs` (N,) of the tokens to draw from, and their
    probabilities (M,), which need not sum to 1.

    The temperature sharpens (below 1) or flattens (above 1) them. Then only the `top_k` most
    probable tokens remain (0: all), and of those the fewest whose sum reaches `top_p`.
    """
    with np.errstate(over="ignore"):  # a low temperature sends all but the best to -inf
        scaled = (log_probs - log_probs.max()) / max(temperature, COLDEST)  # (N,)
    if not top_k and top_p == 1:
        return np.arange(len(scaled)), np.exp(scaled)
    best = best_first(scaled, top_k or RANKED_FIRST)  # (M,)
    probs = np.exp(scaled[best].astype(np.float64))  # (M,)
    total = probs.sum() if top_k else np.exp(scaled).sum(dtype=np.float64)
    remains = np.cumsum(probs) - probs < top_p * total  # (M,): all until the sum has reached top_p
    if top_k or not remains[-1] or len(best) == len(scaled):
        return best[remains], probs[remains]
    many = nucleus(scaled, top_p)
    return many, np.exp(scaled[many])


def nucleus(scaled: FloatArray, top_p: float) -> IntArray:
    """Return the places of the fewest tokens whose probabilities sum to `top_p` of the total.

    `scaled` (N,) are log-probs plus a constant, at most 0. Only the bin in which the sum reaches
    `top_p` is sorted: sorting a whole vocabulary takes several times as long.
    """
    probs = np.exp(scaled)  # (N,)
    depth = max(COLDEST, min(DEPTH, -float(scaled.min())))
    bins = np.minimum(scaled * (-BINS / depth), BINS - 1).astype(np.intp)  # (N,)
    sums = np.cumsum(np.bincount(bins, probs, BINS))  # (BINS,)
    wanted = top_p * sums[-1]
    last = int(np.searchsorted(sums, wanted))
    inside = np.flatnonzero(bins == last)
    inside = inside[best_first(scaled[inside], len(inside))]
    before = np.cumsum(probs[inside], dtype=np.float64) - probs[inside]
    remains = bins < last  # (N,)
    above = sums[last - 1] if last else 0.0  # the sum of the bins before it
    remains[inside[before < wanted - above]] = True
    return np.flatnonzero(remains)


def draw(allowed: Allowed, options: SearchOptions, random: np.random.Generator) -> int:
    """Return the index in `allowed` of a token drawn by inverse transform sampling.

    Probabilities are summed in the order of ids, not of rank: rounding can rank near-ties
    differently on another machine, which must not change a seeded draw.
    """
    places, probs = warp(allowed.log_probs, options.temperature, options.top_k, options.top_p)
    ids = allowed.ids[places]  # (M,)
    if (ids[:-1] > ids[1:]).any():
        order = np.argsort(ids)
        places, probs = places[order], probs[order]
    return int(places[inverse_cdf(probs, random.random())])


def inverse_cdf(probs: NDArray[np.floating], share: float) -> int:
    """Return the index at which the sum of `probs` (M,) exceeds `share` of their total.

    Whole blocks are skipped by their sums: adding up a vocabulary one by one takes much longer.
    """
    blocks = np.add.reduceat(probs, np.arange(0, len(probs), BLOCK)).astype(np.float64)
    sums = np.cumsum(blocks)
    wanted = share * sums[-1]
    block = min(int(np.searchsorted(sums, wanted, side="right")), int(np.flatnonzero(blocks)[-1]))
    first = block * BLOCK
    inside = probs[first : first + BLOCK].astype(np.float64)
    wanted -= sums[block - 1] if block else 0.0  # the sum of the blocks before it
    index = int(np.searchsorted(np.cumsum(inside), wanted, side="right"))
    return first + min(index, int(np.flatnonzero(inside)[-1]))  # never one of probability 0
