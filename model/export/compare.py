"""The error of a bundle's int8 graphs beside fp32, on sources that calibration did not see."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from model.export.calibrate import samples
from model.network.transformer import Transformer

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Difference:
    """Errors of log-probs at all positions, of tokens to which fp32 gives 1 in 1,000 or more."""

    mean: float
    largest: float
    same_best: float  # share of positions where both have the same best token


def compare(bundle: Path, model: Transformer) -> Difference:
    """Run both precisions over random sources and the targets that torch decodes for them."""
    pairs = samples(model, seed=1)
    exact, rounded = (np.concatenate(log_probs(bundle / p, pairs)) for p in ("fp32", "int8"))
    likely = exact >= np.log(1e-3)
    errors = np.abs(exact - rounded)[likely]
    same_best = (exact.argmax(-1) == rounded.argmax(-1)).mean()
    return Difference(float(errors.mean()), float(errors.max()), float(same_best))


def log_probs(folder: Path, pairs: list[tuple[list[int], list[int]]]) -> list[Array]:
    """Return (T, V) for each pair of source ids and decoder inputs (T,), step by step."""
    options = ort.SessionOptions()
    options.log_severity_level = 3  # no warning for each copied cache: all are copied here
    # As the service does: without it, sums of a CPU without VNNI saturate and the numbers differ.
    options.add_session_config_entry("session.x64quantprecision", "1")
    encoder, step = (
        ort.InferenceSession(folder / f"{name}.onnx", options, providers=["CPUExecutionProvider"])
        for name in ("encoder", "step")
    )
    return [decode(encoder, step, *pair) for pair in pairs]


def decode(
    encoder: ort.InferenceSession, step: ort.InferenceSession, source: list[int], target: list[int]
) -> Array:
    source_length = np.array([len(source)])
    names = [output.name for output in encoder.get_outputs()]
    encoded = run(
        encoder, names, {"source_ids": np.array([source]), "source_length": source_length}
    )
    feeds = {name: array for name, array in zip(names, encoded, strict=True) if name != "memory"}
    feeds |= {"source_length": source_length, "k": np.array([1])}
    for each in step.get_inputs():
        if each.name.startswith("self_"):
            _, heads, _, head_dim = each.shape
            feeds[each.name] = np.zeros((1, heads, len(target), head_dim), np.float32)
    written = [output.name for output in step.get_outputs() if output.name.endswith("_out")]
    rows: list[Array] = []
    for position, token in enumerate(target):
        feeds |= {"token": np.array([token]), "position": np.array([position])}
        logits, *caches = run(step, ["logits", *written], feeds)
        feeds |= {
            name.removesuffix("_out"): cache for name, cache in zip(written, caches, strict=True)
        }
        rows.append(logits[0] - np.logaddexp.reduce(logits[0]))
    return np.stack(rows)


def run(session: ort.InferenceSession, outputs: list[str], feeds: dict[str, Array]) -> list[Array]:
    return cast("list[Array]", session.run(outputs, feeds))
