"""The error of a bundle's graphs beside torch's answers."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import onnxruntime as ort

from model.export.answers import Answer, Array

TYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16}


@dataclass(frozen=True, slots=True)
class Difference:
    """Errors of log-probs at all positions, of tokens to which torch gives 1 in 1,000 or more."""

    mean: float
    largest: float
    same_best: float  # share of positions with the same most probable token


def compare(folder: Path, answers: Sequence[Answer]) -> Difference:
    """Run the graphs in `folder` over what torch has answered.

    One graph is open at a time, and one target's log-probs exist at a time: a model and its
    vocabulary may be large.
    """
    encoder = open_graph(folder / "encoder.onnx")
    encoded = [encode(encoder, answer.source) for answer in answers]
    del encoder
    step = open_graph(folder / "step.onnx")
    errors: list[Array] = []
    same: list[Array] = []
    for exact, feeds in zip(answers, encoded, strict=True):
        log_probs = decode(step, feeds, exact.target)
        errors.append(np.abs(exact.log_probs - log_probs[exact.places]))
        same.append(exact.best == log_probs.argmax(-1))
    all_errors = np.concatenate(errors)
    same_best = np.concatenate(same).mean()
    return Difference(float(all_errors.mean()), float(all_errors.max()), float(same_best))


def open_graph(path: Path) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 3  # no warning for each copied cache: all are copied here
    # As the service does: without it, sums of a CPU without VNNI saturate and the numbers differ.
    options.add_session_config_entry("session.x64quantprecision", "1")
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def encode(encoder: ort.InferenceSession, source: list[int]) -> dict[str, Array]:
    """Return what the step graph reads of a source."""
    feeds = {"source_ids": np.array([source]), "source_length": np.array([len(source)])}
    names = [each.name for each in encoder.get_outputs() if each.name != "memory"]
    encoded = run(encoder, names, feeds)
    return {"source_length": feeds["source_length"], **dict(zip(names, encoded, strict=True))}


def decode(step: ort.InferenceSession, encoded: dict[str, Array], target: list[int]) -> Array:
    """Return log-probs (T, V) after each decoder input of `target` (T,), step by step."""
    feeds = {**encoded, "k": np.array([1])}
    for each in step.get_inputs():
        if each.name.startswith("self_"):
            _, heads, _, head_dim = each.shape
            feeds[each.name] = np.zeros((1, heads, len(target), head_dim), TYPES[each.type])
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
