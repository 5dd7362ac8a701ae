"""Draw attention and attribution as text: a row for each target token, a column of two characters
for each source token, and a darker shade for a larger number. Norms and losses have one scale for
each heatmap."""

import unicodedata
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from service.arrays import FloatArray

BLOCKS = " ░▒▓█"
LONGEST_SHOWN = 16  # characters of a label
LEAST = 1e-9  # norm or loss: below it, a heatmap has nothing to show
LOST = {"target": "log-prob lost", "contrast": "lead over the foil lost"}


def draw_heatmaps(result: dict[str, Any]) -> str:
    """Draw the heatmaps of a result of /v1/attention, in JSON, below one another."""
    lines = [f"{result['source']} → {result['target']}"]
    for block in result["attention"]:
        rows, columns = labels(block["rows"]), labels(block["columns"])
        weights: FloatArray = np.asarray(block["data"], np.float32)
        matrices = weights.reshape(-1, *block["shape"][-2:])
        if block.get("measure") == "norm":
            matrices = matrices / np.maximum(matrices.max((1, 2), keepdims=True), LEAST)
        for title, matrix in zip(titles(block), matrices, strict=True):
            lines += ["", title, *heatmap(matrix, rows, columns)]
        alignment = block.get("alignment")
        if isinstance(alignment, dict) and "words" in alignment:
            lines += ["", *aligned_words(alignment["words"])]
    return "\n".join(lines)


def draw_attribution(result: dict[str, Any]) -> str:
    """Draw the losses of a result of /v1/attribution, in JSON. Gains stay white. Each token of
    the target stands next to its source share."""
    lines = [f"{result['source']} → {result['target']}"]
    for block in result["attribution"]:
        kind, rows, columns = block["kind"], labels(block["rows"]), labels(block["columns"])
        if kind == "target":
            rows = [f"{row} {of:.2f}" for row, of in zip(rows, result["source_share"], strict=True)]
        lost: FloatArray = np.asarray(block["data"], np.float32).reshape(block["shape"])
        most = lost.max(initial=0)
        shown = f"{most:.2f}" if most >= 0.1 else f"{most:.1g}"
        title = f"{LOST.get(kind, f'{kind} heads, log-prob lost')}, at most {shown}"
        lines += ["", title, *heatmap(np.maximum(lost, 0) / max(most, LEAST), rows, columns)]
    return "\n".join(lines)


def aligned_words(words: dict[str, Any]) -> Iterator[str]:
    """Yield a line for each word of the target, in its order, with the words that it is from."""
    targets, sources = labels(words["target"]), labels(words["source"])
    for index, target in enumerate(targets):
        origin = [sources[source] for source, aligned in words["pairs"] if aligned == index]
        yield f"{target} ← {' '.join(origin)}".rstrip()


def titles(block: dict[str, Any]) -> Iterator[str]:
    """Yield which layer and head each matrix shows, or how they were combined."""
    layers = [f"layer {each}" for each in block["layers"]]
    heads = [f"head {each}" for each in block["heads"]]
    if how := block.get("reduce_layers"):
        layers = [f"{how} of {len(layers)} layers"]
    if how := block.get("reduce_heads"):
        heads = [f"{how} of {len(heads)} heads"]
    what = "attention" if block.get("measure") != "norm" else "attention norms"
    for layer in layers:
        yield from (f"{block['kind']} {what}, {layer}, {head}" for head in heads)


def labels(tokens: Sequence[dict[str, Any]]) -> list[str]:
    """Return the tokens, without characters that control terminals."""
    texts = ("".join(c if c.isprintable() else " " for c in token["text"]) for token in tokens)
    return [
        text if len(text) <= LONGEST_SHOWN else f"{text[: LONGEST_SHOWN - 1]}…" for text in texts
    ]


def heatmap(weights: FloatArray, rows: Sequence[str], columns: Sequence[str]) -> Iterator[str]:
    """Yield lines: the labels of columns, which are read downwards, then a line for each row."""
    left = max(map(width, rows), default=0)
    for letters in zip(*(text.rjust(max(map(len, columns))) for text in columns), strict=True):
        yield (" " * (left + 1) + "".join(c + " " * (2 - width(c)) for c in letters)).rstrip()
    shades = np.minimum((weights * len(BLOCKS)).astype(int), len(BLOCKS) - 1)
    for text, row in zip(rows, shades.tolist(), strict=True):
        cells = "".join(2 * BLOCKS[shade] for shade in row)
        yield f"{text}{' ' * (left - width(text))} {cells}".rstrip()


def width(text: str) -> int:
    """Return how many places of a terminal a text takes."""
    return sum(
        0 if unicodedata.combining(c) else 1 + (unicodedata.east_asian_width(c) in "WF")
        for c in text
    )
