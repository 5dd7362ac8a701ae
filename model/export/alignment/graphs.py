"""Decode, attend and score by the graphs of a bundle: what occlusion needs, without PyTorch.

Axes: B copies of a source, S source length, T target length, L decoder layers, H heads, V vocab.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime as ort

from model.export.checks.compare import Array, Steps, encode, open_graph, run_session

ROWS = 8  # sources that are decoded at once
LOGITS = 1 << 26  # numbers of the logits of a scoring pass
SPARE = 8  # tokens by which a target may be longer than twice its source


@dataclass(frozen=True, slots=True)
class Pair:
    """Ids of a source as the encoder reads it, and of what was decoded from it."""

    source: list[int]
    target: list[int]


@dataclass(frozen=True, slots=True)
class Graphs:
    """The graphs in a folder, each opened while it is used: a model may be large.

    The decoder reads the ids `start` before a target, which has at most `longest` tokens. Ids that
    are `banned` are not generated.
    """

    folder: Path
    start: list[int]
    eos_ids: list[int]
    banned: list[int]
    longest: int
    vocab_size: int

    def decode(self, sources: Sequence[list[int]]) -> list[Pair]:
        """Return each source with what greedy search makes of it, eos included."""
        encoder, step = self._open("encoder"), self._open("step")
        pairs: list[Pair] = []
        for first in range(0, len(sources), ROWS):
            rows = sources[first : first + ROWS]
            most = min(self.longest, 2 * max(map(len, rows)) + SPARE)
            steps = Steps(step, encode(encoder, rows), len(self.start) + most)
            for source, ids in zip(
                rows, self._search(steps, len(rows), most).tolist(), strict=True
            ):
                ends = (place + 1 for place, each in enumerate(ids) if each in self.eos_ids)
                end = next(ends, len(ids))
                pairs.append(Pair(source, ids[:end]))
        return pairs

    def _search(self, steps: Steps, rows: int, most: int) -> Array:
        """Return the best tokens (B, T): eos in each row, or `most` tokens."""
        for token in self.start[:-1]:
            steps.logits(np.full((rows, 1), token))
        token, written = np.full(rows, self.start[-1]), np.zeros((rows, 0), np.int64)
        while written.shape[1] < most and not np.isin(written, self.eos_ids).any(1).all():
            logits = steps.logits(token[:, None])
            logits[:, self.banned] = -np.inf
            token = logits.argmax(-1)
            written = np.column_stack([written, token])
        return written

    def attend(self, pairs: Sequence[Pair]) -> Iterator[Array]:
        """Yield the cross-attention (L, H, T + 1, S) of each pair: of the step that predicts the
        first token, then of the step that reads each token."""
        encoder, attention = self._open("encoder"), self._open("attention")
        outputs = [each.name for each in attention.get_outputs()]
        cross = [name for name in outputs if name.startswith("cross_attention_")]
        names = [f"cross_attention_{layer}" for layer in range(len(cross))]
        for pair in pairs:
            ids = [*self.start, *pair.target]
            feeds = encode(encoder, [pair.source]) | decoder_feeds(ids, 1)
            weights = np.stack(run_session(attention, names, feeds))[:, 0]
            yield weights[:, :, len(self.start) - 1 :]

    def score(self, copies: Sequence[Array], pairs: Sequence[Pair]) -> Iterator[Array]:
        """Yield the log-probs (B, T) of each target after each of the copies (B, S) of its
        source."""
        encoder, score = self._open("encoder"), self._open("score")
        for sources, pair in zip(copies, pairs, strict=True):
            ids = [*self.start, *pair.target]
            rows = max(1, LOGITS // (self.vocab_size * len(ids)))
            found: list[Array] = []
            for first in range(0, len(sources), rows):
                part = sources[first : first + rows]
                feeds = encode(encoder, part.tolist()) | decoder_feeds(ids[:-1], len(part))
                feeds["target_ids"] = np.array([ids[1:]] * len(part))
                found += run_session(score, ["token_log_probs"], feeds)
            yield np.concatenate(found)[:, len(self.start) - 1 :]

    def _open(self, graph: str) -> ort.InferenceSession:
        return open_graph(self.folder / f"{graph}.onnx")


def decoder_feeds(ids: list[int], rows: int) -> dict[str, Array]:
    return {
        "decoder_input_ids": np.array([ids] * rows),
        "decoder_length": np.full(rows, len(ids)),
    }
