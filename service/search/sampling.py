"""Draw a token from the probabilities of those that may follow."""

import numpy as np
from numpy.typing import NDArray

from service.arrays import FloatArray
from service.search.options import SearchOptions
from service.search.rules import Allowed


def warp(
    log_probs: FloatArray, temperature: float, top_k: int, top_p: float
) -> NDArray[np.float64]:
    """Log-probs -> probabilities to draw from: sharpened, then of the k best (0: of all), then of
    the fewest whose sum reaches p."""
    scaled = (log_probs.astype(np.float64) - log_probs.max()) / temperature
    if not top_k and top_p == 1:
        probs = np.exp(scaled)
        return probs / probs.sum()
    order = np.argsort(-scaled, kind="stable")
    ranked = np.exp(scaled[order] - scaled[order[0]])
    if top_k:
        ranked[top_k:] = 0
    ranked /= ranked.sum()
    ranked[np.cumsum(ranked) - ranked >= top_p] = 0
    probs = np.empty_like(ranked)
    probs[order] = ranked / ranked.sum()
    return probs


def draw(offer: Allowed, options: SearchOptions, random: np.random.Generator) -> int:
    """-> index into the offer. By ids, so that what is nearly alike may change places."""
    order = np.argsort(offer.ids, kind="stable")  # at once where they are sorted
    probs = warp(offer.log_probs, options.temperature, options.top_k, options.top_p)[order]
    reached = np.cumsum(probs)
    place = np.searchsorted(reached, random.random() * reached[-1], side="right")
    return int(order[min(int(place), int(np.flatnonzero(probs)[-1]))])
