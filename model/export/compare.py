"""The error of a bundle's int8 graphs beside torch, on sources that calibration did not see."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnxruntime as ort
import torch
from numpy.typing import NDArray

from model.export.calibrate import samples
from model.network.transformer import Transformer

Array = NDArray[Any]
Pairs = Sequence[tuple[list[int], list[int]]]
LIKELY = 1e-3  # least probability, as torch computes it, of a token whose error counts


@dataclass(frozen=True, slots=True)
class Difference:
    """Errors of log-probs at all positions, of tokens to which torch gives 1 in 1,000 or more."""

    mean: float
    largest: float
    same_best: float  # share of positions where both have the same best token


def compare(folder: Path, model: Transformer, pairs: Pairs | None = None) -> Difference:
    """Run the graphs in `folder` over pairs of what the encoder and the decoder read: by default
    random sources, and the targets that torch decodes for them.

    One graph is open at a time, and one target's log-probs exist at a time: a model and its
    vocabulary may be large.
    """
    pairs = samples(model, seed=1) if pairs is None else pairs
    encoder = open_graph(folder / "encoder.onnx")
    encoded = [encode(encoder, source) for source, _ in pairs]
    del encoder
    step = open_graph(folder / "step.onnx")
    errors: list[Array] = []
    same: list[Array] = []
    for (source, target), feeds in zip(pairs, encoded, strict=True):
        exact, rounded = torch_log_probs(model, source, target), decode(step, feeds, target)
        errors.append(np.abs(exact - rounded)[exact >= np.log(LIKELY)])
        same.append(exact.argmax(-1) == rounded.argmax(-1))
    all_errors = np.concatenate(errors)
    same_best = np.concatenate(same).mean()
    return Difference(float(all_errors.mean()), float(all_errors.max()), float(same_best))


@torch.no_grad()
def torch_log_probs(model: Transformer, source: list[int], target: list[int]) -> Array:
    """Return (T, V) after each decoder input of `target` (T,)."""
    lengths = torch.tensor([len(source)]), torch.tensor([len(target)])
    return model(torch.tensor([source]), lengths[0], torch.tensor([target]), lengths[1])[0].numpy()


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
