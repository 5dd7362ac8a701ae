"""The error of a bundle's graphs, compared with torch's answers."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import onnxruntime as ort

from model.export.checks.answers import Answer, Array

TYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16}


ROWS = 8  # texts that are decoded at once: their caches are copied at each step
LEAST = 1e-9  # nats of a difference: two tokens may be equally probable
CLEARLY = 0.2  # nats by which torch prefers its own token, where another one spoils a text


@dataclass(frozen=True, slots=True)
class Difference:
    """Errors of log-probs at all positions, of tokens to which torch gives 1 in 1,000 or more, and
    counts of texts that the graphs decode themselves.

    A text is spoiled if the first token that differs from torch's is one that torch finds clearly
    less probable.
    """

    mean: float
    largest: float
    same_best: float  # share of positions with the same most probable token
    texts: int
    same_texts: int
    spoiled_texts: int


def compare(folder: Path, answers: Sequence[Answer], start: int = 1) -> Difference:
    """Run the graphs in `folder` over the answers of torch, which decoded their targets greedily
    after `start` ids.

    One graph is open at a time, and one target's log-probs exist at a time: a model and its
    vocabulary may be large.
    """
    encoder = open_graph(folder / "encoder.onnx")
    encoded = [encode(encoder, [answer.source]) for answer in answers]
    together = [
        encode(encoder, [answer.source for answer in answers[first : first + ROWS]])
        for first in range(0, len(answers), ROWS)
    ]
    del encoder
    step = open_graph(folder / "step.onnx")
    errors: list[Array] = []
    same: list[Array] = []
    for exact, feeds in zip(answers, encoded, strict=True):
        log_probs = forced_log_probs(step, feeds, exact.target)
        errors.append(np.abs(exact.log_probs - log_probs[exact.places]))
        same.append(exact.best == log_probs.argmax(-1))
    written = [
        ids
        for first in range(0, len(answers), ROWS)
        for ids in search(step, together[first // ROWS], answers[first : first + ROWS], start)
    ]
    losses = [loss(exact, ids, start) for exact, ids in zip(answers, written, strict=True)]
    all_errors = np.concatenate(errors)
    return Difference(
        float(all_errors.mean()),
        float(all_errors.max()),
        float(np.concatenate(same).mean()),
        len(losses),
        losses.count(0.0),
        sum(each > CLEARLY for each in losses),
    )


def loss(exact: Answer, ids: Array, start: int) -> float:
    """Return how much more probable, in nats, torch finds its own token than the first of `ids`
    that differs from its own; 0 if none does."""
    best = exact.best[start - 1 :]
    different = np.nonzero(best != ids[: len(best)])[0]
    if not len(different):
        return 0.0
    place = start - 1 + different[0]
    here = exact.places[0] == place
    log_probs = dict(zip(exact.places[1][here].tolist(), exact.log_probs[here], strict=True))
    gap = log_probs[exact.best[place]] - log_probs.get(ids[different[0]], -np.inf)
    return max(float(gap), LEAST)


def open_graph(path: Path) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 3  # no warning for each copied cache: all are copied here
    # As the service does: without it, sums of a CPU without VNNI saturate and the numbers differ.
    options.add_session_config_entry("session.x64quantprecision", "1")
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def encode(encoder: ort.InferenceSession, sources: Sequence[list[int]]) -> dict[str, Array]:
    """Return the inputs of the step graph for sources. Padding is not read, so any id will do."""
    lengths = np.array([len(source) for source in sources])
    ids = np.ones((len(sources), lengths.max()), np.int64)
    for row, source in zip(ids, sources, strict=True):
        row[: len(source)] = source
    feeds = {"source_ids": ids, "source_length": lengths}
    names = [each.name for each in encoder.get_outputs() if each.name != "memory"]
    encoded = run_session(encoder, names, feeds)
    return {"source_length": feeds["source_length"], **dict(zip(names, encoded, strict=True))}


def forced_log_probs(
    step: ort.InferenceSession, encoded: dict[str, Array], target: list[int], at_once: bool = False
) -> Array:
    """Return log-probs (T, V) after each decoder input of `target` (T,), read step by step, or the
    first and then all others `at_once`."""
    steps = Steps(step, encoded, len(target))
    parts = [target[:1], target[1:]] if at_once else [[token] for token in target]
    logits = [steps.logits(np.array([part])) for part in parts if part]
    return np.stack([log_softmax(row) for row in np.concatenate(logits)])


def reads_several(step: ort.InferenceSession) -> bool:
    """Return whether a step graph reads several tokens of a row: that of an SSRU does not."""
    (token,) = (each for each in step.get_inputs() if each.name == "token")
    return token.shape[1] != 1


def log_softmax(logits: Array) -> Array:
    """(V,) -> (V,). np.logaddexp.reduce would add one by one, and lose the last digits."""
    shifted = logits - logits.max()
    return shifted - np.log(np.exp(shifted).sum())


def search(
    step: ort.InferenceSession, encoded: dict[str, Array], answers: Sequence[Answer], start: int
) -> Array:
    """Return the ids (B, T) that greedy search writes for all sources, as many as torch's longest
    target has."""
    longest = max(len(answer.target) for answer in answers)
    steps = Steps(step, encoded, longest)
    token = np.array([answer.target[0] for answer in answers])
    written: list[Array] = []
    for position in range(longest):
        best = steps.logits(token[:, None]).argmax(-1)
        if position + 1 < start:
            token = np.array([answer.target[position + 1] for answer in answers])
        else:
            token = best
            written.append(best)
    return np.stack(written, 1)


class Steps:
    """A step graph and its caches, one row for each source."""

    def __init__(self, step: ort.InferenceSession, encoded: dict[str, Array], longest: int) -> None:
        rows = len(encoded["source_length"])
        self._step, self._position = step, np.zeros(rows, np.int64)
        self._feeds = {**encoded, "k": np.array([1])}
        for each in step.get_inputs():
            if each.name.startswith("self_"):
                _, heads, positions, head_dim = each.shape  # 1 position of a state, else a name
                held = positions if isinstance(positions, int) else longest
                shape = rows, heads, held, head_dim
                self._feeds[each.name] = np.zeros(shape, TYPES[each.type])
        self._written = [each.name for each in step.get_outputs() if each.name.endswith("_out")]

    def logits(self, tokens: Array) -> Array:
        """Return (R x N, V) after the tokens (R, N), which are written to the caches."""
        count = tokens.shape[1]
        position = self._position[:, None] + np.arange(count)  # (R, N)
        feeds = {**self._feeds, "token": tokens, "position": position}
        logits, *caches = run_session(self._step, ["logits", *self._written], feeds)
        for name, cache in zip(self._written, caches, strict=True):
            self._feeds[name.removesuffix("_out")] = cache
        self._position = self._position + count
        return logits


def run_session(
    session: ort.InferenceSession, outputs: list[str], feeds: dict[str, Array]
) -> list[Array]:
    return cast("list[Array]", session.run(outputs, feeds))
