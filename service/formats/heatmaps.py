"""Pictures of attention: what is drawn, and where."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.formats.fonts import width_of
from service.formats.picture import FONT_SIZE, Cells, Colour, Dot, Label, Line, Picture

Floats = NDArray[np.floating[Any]]

GRID: Colour = (204, 204, 204)
BLUE, ORANGE, GREY = (31, 91, 160), (200, 90, 0), (120, 120, 120)
# Viridis (van der Walt and Smith 2015), which grows lighter evenly, at nine places.
VIRIDIS = np.array(
    [
        (68, 1, 84),
        (71, 44, 122),
        (59, 81, 139),
        (44, 113, 142),
        (33, 144, 141),
        (39, 173, 129),
        (92, 200, 99),
        (170, 220, 50),
        (253, 231, 37),
    ]
)
MOST_POINTS = 2000  # of a line or a cloud; of more, every second, third, ... is drawn
LARGEST_SIDE = 200  # cells of an unlabelled heatmap; a larger one is drawn from means of blocks
LARGEST_CELL = 28.0  # of a labelled one
ROOM = 3600.0  # for the cells of a grid of heatmaps, each way: of 200 tokens each has its label
LINE_HEIGHT = FONT_SIZE + 1
TITLE_HEIGHT = LINE_HEIGHT + 6
LONGEST_LABEL = 24  # letters
LONGEST_LINE = 120
GAP = 16.0


def draw_attention(weights: Floats, points: Floats, prediction: Floats, truth: Floats) -> Picture:
    """weights (B, T, S); for a regression points (2, S), prediction and truth (2, T), x above y,
    any of which may be empty. A line plot if there are points, then a heatmap a sequence."""
    side, gap = 320.0, 70.0
    plots = 1 if points.size else 0
    picture = Picture(
        width=gap + (plots + len(weights)) * (side + gap),
        height=side + 2 * gap,
        title=f"attention of {weights.shape[1]} queries over {weights.shape[2]} keys",
    )
    if plots:
        draw_plot(picture, gap, gap, side, points, prediction, truth)
    for i, rows in enumerate(weights, plots):
        draw_heatmap(picture, gap + i * (side + gap), gap, side, rows)
    return picture


def draw_heatmap(picture: Picture, left: float, top: float, side: float, rows: Floats) -> None:
    """rows (T, S), queries downwards; the brightest colour is the largest weight."""
    queries, keys = rows.shape
    cells = coloured(shrunk(rows, LARGEST_SIDE, LARGEST_SIDE), rows.max())
    picture.shapes.append(Cells(left, top, side, side, cells))
    for index in {0, queries - 1}:
        place = (index + 0.5) / queries
        picture.shapes.append(Label(left - 6, top + place * side, str(index), "end"))
    for index in {0, keys - 1}:
        place = (index + 0.5) / keys
        picture.shapes.append(Label(left + place * side, top + side + 14, str(index)))
    caption = f"query x key, largest weight {rows.max():.3g}"
    picture.shapes.append(Label(left + side / 2, top - 14, caption))


def draw_plot(
    picture: Picture,
    left: float,
    top: float,
    side: float,
    points: Floats,
    prediction: Floats,
    truth: Floats,
) -> None:
    """Points as dots, the prediction as a line, the truth as a dashed one."""
    everything = np.concatenate([points, prediction, truth], axis=1)  # (2, ...)
    low, high = everything.min(1), everything.max(1)
    span = np.where(high > low, high - low, 1.0)

    def place(xy: Floats) -> list[tuple[float, float]]:
        xy = xy[:, :: -(-xy.shape[1] // MOST_POINTS) or 1]
        x, y = (xy - low[:, None]) / span[:, None]
        return list(zip((left + x * side).tolist(), (top + side - y * side).tolist(), strict=True))

    frame = [(0, 0), (side, 0), (side, side), (0, side), (0, 0)]
    picture.shapes.append(Line([(left + x, top + y) for x, y in frame], GRID))
    picture.shapes.extend(Dot(x, y, GREY) for x, y in place(points))
    if truth.size:
        picture.shapes.append(Line(place(truth), ORANGE, dashed=True))
    picture.shapes.append(Line(place(prediction), BLUE))
    for axis, (x, y, anchor) in enumerate(((left, top + side + 14, "start"), (left - 6, 0, "end"))):
        far = (left + side, y) if axis == 0 else (x, top)
        near = (x, y) if axis == 0 else (x, top + side)
        picture.shapes.append(Label(*near, f"{low[axis]:.3g}", anchor))
        picture.shapes.append(Label(*far, f"{high[axis]:.3g}", "end"))
    names = "points, prediction (blue)" + (", truth (dashed)" if truth.size else "")
    picture.shapes.append(Label(left + side / 2, top - 14, names))


def draw_blocks(blocks: Sequence[dict[str, Any]], source: str, target: str) -> Picture:
    """Blocks as in responses.AttentionBlock, below one another: each a grid of heatmaps, a layer a
    row and a head a column, whose brightest colour is the block's largest weight."""
    kinds = ", ".join(block["kind"] for block in blocks)
    title = f"{kinds} attention: {source} → {target}"
    picture = Picture(width=0.0, height=GAP, title=title)
    write_line(picture, title)
    for block in blocks:
        if block["data"].size:
            draw_grid(picture, block)
        else:
            write_line(picture, f"{block['kind']} attention: the target has no such step")
    return picture


def draw_grid(picture: Picture, block: dict[str, Any]) -> None:
    """Below what is there."""
    data: Floats = block["data"]
    titles, largest = titles_of(block), data.max()
    matrices = data.reshape(len(titles), *data.shape[-2:])  # (N, T, S)
    across = columns_of(data)
    down = math.ceil(len(matrices) / across)
    rows, columns = (
        [shortened(token.text) for token in block[axis]] for axis in ("rows", "columns")
    )
    cell = min(LARGEST_CELL, ROOM / (across * len(columns)), ROOM / (down * len(rows)))
    left, below = (max(map(width_of, names)) for names in (rows, columns))
    width, height = cell * len(columns), cell * len(rows)
    across_step = left + max(width, *map(width_of, titles)) + GAP
    down_step = TITLE_HEIGHT + height + below + GAP
    scale = f"dark 0 to bright {largest:.3g}"
    write_line(picture, f"{block['kind']} attention: rows attend to columns, {scale}")
    picture.width = max(picture.width, GAP + across * across_step)
    for i, (title, matrix) in enumerate(zip(titles, matrices, strict=True)):
        x = GAP + left + i % across * across_step
        y = picture.height + TITLE_HEIGHT + i // across * down_step
        picture.shapes.append(Label(x, y - TITLE_HEIGHT / 2, title, "start"))
        cells = coloured(shrunk(matrix, math.ceil(height), math.ceil(width)), largest)
        picture.shapes.append(Cells(x, y, width, height, cells))
        draw_labels(picture, x, y, cell, rows, columns)
    picture.height += down * down_step


def write_line(picture: Picture, text: str) -> None:
    """Below what is there."""
    line = text if len(text) <= LONGEST_LINE else text[: LONGEST_LINE - 1] + "…"
    picture.shapes.append(Label(GAP, picture.height + LINE_HEIGHT / 2, line, "start"))
    picture.width = max(picture.width, 2 * GAP + width_of(line))
    picture.height += LINE_HEIGHT + GAP / 2


def draw_labels(
    picture: Picture,
    left: float,
    top: float,
    cell: float,
    rows: Sequence[str],
    columns: Sequence[str],
) -> None:
    """Where they would overlap, only some are drawn."""
    every = math.ceil(LINE_HEIGHT / cell)
    for i in range(0, len(rows), every):
        picture.shapes.append(Label(left - 4, top + (i + 0.5) * cell, rows[i], "end"))
    bottom = top + len(rows) * cell
    fit = max(map(width_of, columns)) <= cell
    for i in range(0, len(columns), every):
        place = left + (i + 0.5) * cell
        if fit:
            label = Label(place, bottom + LINE_HEIGHT / 2 + 2, columns[i])
        else:
            label = Label(place, bottom + 4, columns[i], "end", upwards=True)
        picture.shapes.append(label)


def columns_of(data: Floats) -> int:
    """A head a column, where there are several layers; else as makes the grid about square."""
    if data.ndim == 4 and len(data) > 1:
        return data.shape[1]
    count = math.prod(data.shape[:-2])
    return min(count, max(1, round(math.sqrt(count * data.shape[-2] / data.shape[-1]))))


def titles_of(block: dict[str, Any]) -> list[str]:
    """Of each matrix."""
    layers, heads = (
        [f"{block[f'reduce_{axis}s']} of {axis}s {', '.join(map(str, block[f'{axis}s']))}"]
        if f"reduce_{axis}s" in block
        else [f"{axis} {i}" for i in block[f"{axis}s"]]
        for axis in ("layer", "head")
    )
    return [f"{layer}; {head}" for layer in layers for head in heads]


def shortened(text: str) -> str:
    return text if len(text) <= LONGEST_LABEL else text[: LONGEST_LABEL - 1] + "…"


def coloured(weights: Floats, largest: float) -> NDArray[np.uint8]:
    """(T, S), from 0 to the largest -> (T, S, 3)."""
    return viridis(weights / (largest or 1.0))


def shrunk(rows: Floats, most_rows: int, most_columns: int) -> Floats:
    """At most so many: the means of blocks."""
    for axis, most in enumerate((most_rows, most_columns)):
        count = min(rows.shape[axis], most)
        starts = np.arange(count) * rows.shape[axis] // count
        sizes = np.diff([*starts, rows.shape[axis]])
        sums = np.add.reduceat(rows, starts, axis)
        rows = sums / (sizes[:, None] if axis == 0 else sizes)
    return rows


def viridis(values: Floats) -> NDArray[np.uint8]:
    """Numbers from 0 to 1, of any shape -> (..., 3)."""
    places = np.linspace(0, 1, len(VIRIDIS))
    channels = [np.interp(values, places, VIRIDIS[:, channel]) for channel in range(3)]
    return np.stack(channels, axis=-1).round().astype(np.uint8)
