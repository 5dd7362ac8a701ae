"""Find out at export whether the service would refuse the graphs when it starts.

The service compares encoder and step with parity.npz (service/runtime/self_check.py). The measures
and limits here are the same, but for a margin: another CPU rounds a little differently.
"""

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np

from model.export.checks.answers import Array
from model.export.checks.compare import (
    encode,
    forced_log_probs,
    open_graph,
    reads_several,
    run_session,
)

MARGIN = 0.8  # share of the service's limits that may be used up here
RELATIVE, ABSOLUTE = 1e-4, 1e-5  # fp32 limits, number by number
LARGEST_IDS = 16  # log-probs at a position that parity.npz lists first, in descending order


class Limits(NamedTuple):
    """Largest error of rounded graphs, relative to the Euclidean norm of torch's numbers."""

    tensor: float
    log_probs: float  # all of parity.npz together, centred


ROUNDED_LIMITS = {"int8": Limits(0.2, 0.1), "fp16": Limits(0.05, 0.02)}
Compared = tuple[str, Array, Array]  # the tensor's name, the graphs', torch's


def check_like_service(bundle: Path, precision: str) -> str | None:
    """Return why the service would refuse the graphs of this precision; None if it would not.

    `bundle` holds parity.npz and the graphs. One of them is open at a time.
    """
    with np.load(bundle / "parity.npz") as file:
        torch = dict(file)
    ours: list[Array] = []
    theirs: list[Array] = []
    for name, found, expected in compare_decoding(bundle / precision, torch):
        if fault := describe_difference(precision, found, expected):
            return f"{name} differs from torch's {fault}"
        if name.startswith("log_probs"):
            ours.append(found - found.mean())
            theirs.append(expected - expected.mean())
    if precision not in ROUNDED_LIMITS:
        return None
    error = relative_error(np.concatenate(ours), np.concatenate(theirs))
    limit = ROUNDED_LIMITS[precision].log_probs
    if error <= limit * MARGIN:
        return None
    return f"log-probs differ from torch's by {error:.1%}; the service's limit is {limit:.0%}"


def describe_difference(precision: str, ours: Array, theirs: Array) -> str | None:
    if precision in ROUNDED_LIMITS:
        error, limit = relative_error(ours, theirs), ROUNDED_LIMITS[precision].tensor
        within = error <= limit * MARGIN
        return None if within else f"by {error:.1%}; the service's limit is {limit:.0%}"
    if np.allclose(ours, theirs, rtol=RELATIVE * MARGIN, atol=ABSOLUTE * MARGIN):
        return None
    largest = np.abs(ours - theirs).max()
    return f"by up to {largest:.2g}; the service's limit is {ABSOLUTE:g} + {RELATIVE:g} |torch|"


def relative_error(ours: Array, theirs: Array) -> float:
    return float(np.linalg.norm(ours - theirs) / max(np.linalg.norm(theirs), ABSOLUTE))


def compare_decoding(graphs: Path, torch: dict[str, Array]) -> Iterator[Compared]:
    """Yield memory and log-probs of every source, without padding, each with torch's."""
    encoder = open_graph(graphs / "encoder.onnx")
    encoded: list[dict[str, Array]] = []
    for i, length in enumerate(torch["source_length"]):
        source = torch["source_ids"][i, :length]
        feeds = {"source_ids": source[None], "source_length": torch["source_length"][i : i + 1]}
        (memory,) = run_session(encoder, ["memory"], feeds)
        yield f"memory[{i}]", memory[0], torch["memory"][i, :length]
        encoded.append(encode(encoder, [source.tolist()]))
    del encoder
    step = open_graph(graphs / "step.onnx")
    for i, at_once in product(range(len(encoded)), {False, reads_several(step)}):
        target = torch["decoder_input_ids"][i, : torch["decoder_length"][i]].tolist()
        log_probs = forced_log_probs(step, encoded[i], target, at_once)
        for position, row in enumerate(log_probs):  # (V,)
            expected = torch["log_probs"][i, position]
            yield f"log_probs[{i}, {position}]", row[torch["log_prob_ids"][i, position]], expected
            largest = -np.sort(-row)[:LARGEST_IDS]
            yield f"top_log_probs[{i}, {position}]", largest, expected[: len(largest)]
