"""Where the heatmaps of an attention document, their labels and titles are drawn."""

import math
from collections.abc import Sequence
from typing import Any

from service.formats.colours import Floats, coloured, shrunk
from service.formats.fonts import width_of
from service.formats.picture import FONT_SIZE, Cells, Label, Picture

LARGEST_CELL = 28.0
ROOM = 3600.0  # for the cells of a grid of heatmaps, each way: of 200 tokens each has its label
LINE_HEIGHT = FONT_SIZE + 1
TITLE_HEIGHT = LINE_HEIGHT + 6
LONGEST_LABEL = 24  # letters
LONGEST_LINE = 120
GAP = 16.0


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
