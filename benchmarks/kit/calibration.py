"""How well numbers tell right answers from wrong ones, and how true probabilities are."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from benchmarks.kit.document import table

BINS = 10  # of equally many answers


class Judged(NamedTuple):
    """An answer or a part of it: numbers that may tell whether it is right, and whether it is."""

    measures: dict[str, float]
    right: bool


def judge(word: Mapping[str, float], right: bool) -> Judged:
    """Return a word of an answer with its numbers, of which larger ones promise more."""
    measures = {
        "probability": float(np.exp(word["log_prob"])),
        "mean log-prob": word["mean_log_prob"],
        "entropy (negative)": -word["entropy"],
        "source share": word["source_share"],
    }
    return Judged(measures, right)


def describe(name: str, judged: Sequence[Judged]) -> str:
    """Return a table of how well each measure ranks right before wrong, and of the calibration."""
    right = np.mean([each.right for each in judged])
    rows = [[measure, f"{auc(judged, measure):.3f}"] for measure in judged[0].measures]
    binned = [[f"{said:.3f}", f"{found:.3f}"] for said, found in reliability(judged, "probability")]
    error = np.mean([abs(said - found) for said, found in reliability(judged, "probability")])
    most = max(each.measures["probability"] for each in judged)
    head = f"{name}: {right:.1%} right, expected calibration error {error:.3f},"
    head += f" largest probability {most:.3f}\n\n"
    ranks = table(["number", "right ranked before wrong"], rows)
    return f"{head}{ranks}\n{table(['mean probability', 'right'], binned)}"


def auc(judged: Sequence[Judged], measure: str) -> float:
    """Return how often a right answer has more of a measure than a wrong one: 0.5 by chance."""
    values = np.array([each.measures[measure] for each in judged])
    right = np.array([each.right for each in judged])
    order = np.sort(values[~right])
    below = np.searchsorted(order, values[right], "left")
    up_to = np.searchsorted(order, values[right], "right")
    return float((below + up_to).mean() / 2 / len(order))


def reliability(judged: Sequence[Judged], measure: str) -> Iterator[tuple[float, float]]:
    """Yield the mean of a measure, and the share of right answers, in bins of equally many."""
    ranked = sorted(judged, key=lambda each: each.measures[measure])
    for part in np.array_split(np.arange(len(ranked)), BINS):
        said = np.mean([ranked[i].measures[measure] for i in part])
        yield float(said), float(np.mean([ranked[i].right for i in part]))
