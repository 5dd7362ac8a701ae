"""Lay out the heatmaps of a document of attention or attribution, with their labels and titles."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from service.formats.colours import BAR_WIDTH, NUMBER_WIDTH, Floats, coloured, draw_bar, shrunk
from service.formats.labels import width_of
from service.formats.picture import FONT_SIZE, Cells, Label, Picture

LARGEST_CELL = 28.0
LARGEST_GRID = 3600.0  # width or height of all cells of a grid: 200 tokens still fit with labels
LINE_HEIGHT = FONT_SIZE + 1
TITLE_HEIGHT = LINE_HEIGHT + 6
LONGEST_LABEL = 24  # letters
LONGEST_TITLE = 120
HEATMAP_GAP = 16.0  # between heatmaps, and around them
LABEL_GAP = 4.0  # between cells and labels
CAPTIONS = {  # of kinds of attribution
    "target": "log-prob that rows lose without columns",
    "contrast": "lead over the foil that rows lose without columns",
}
# After an Arabic text: its full stop is part of it, and what follows is on its right.
END_OF_TEXT = "\N{RIGHT-TO-LEFT MARK}\N{LEFT-TO-RIGHT MARK}"


@dataclass(frozen=True, slots=True)
class Grid:
    """The layout of the equally large heatmaps of a block."""

    across: int  # heatmaps side by side
    down: int
    cell: float  # side of a cell
    left: float  # width of the labels of rows
    step_across: float  # from one heatmap to the next
    step_down: float


def draw_blocks(
    blocks: Sequence[dict[str, Any]], source: str, target: str, what: str = "attention"
) -> Picture:
    """Draw blocks (responses.AttentionBlock or AttributionBlock, with arrays) as grids of heatmaps
    below one another. `what` is the field that has them.

    In a grid a row is a layer, a column is a head, and the brightest colour is the largest weight.
    """
    kinds = ", ".join(block["kind"] for block in blocks)
    title = f"{what}: {source}{END_OF_TEXT} → {target}{END_OF_TEXT}"
    picture = Picture(width=0.0, height=HEATMAP_GAP, title=f"{kinds} {title}")
    add_line(picture, title)  # each block says its kind
    for block in blocks:
        if block["data"].size:
            add_grid(picture, block)
        else:
            add_line(picture, nothing_in(block))
    return picture


def add_line(picture: Picture, text: str) -> None:
    """Extend the picture downwards by a line of text."""
    line = shortened_title(text, LONGEST_TITLE)
    picture.shapes.append(Label(HEATMAP_GAP, picture.height + LINE_HEIGHT / 2, line, "start"))
    picture.width = max(picture.width, 2 * HEATMAP_GAP + width_of(line))
    picture.height += LINE_HEIGHT + HEATMAP_GAP / 2


def caption_of(block: dict[str, Any]) -> str:
    kind = block["kind"]
    if "heads" in block:
        measure = ", by norm" if block.get("measure") == "norm" else ""
        return f"{kind} attention{measure}: rows attend to columns"
    return CAPTIONS.get(kind, f"{kind} attention: log-prob that the target loses without each head")


def nothing_in(block: dict[str, Any]) -> str:
    kind = block["kind"]
    if kind in CAPTIONS:
        return f"{CAPTIONS[kind]}: the source has no token to replace"
    return f"{kind} attention: the target has no such step"


def add_scale(picture: Picture, text: str, largest: float, signed: bool) -> None:
    """Extend the picture downwards by a line of text, and a colour bar after it."""
    left, middle = 3 * HEATMAP_GAP + width_of(text), picture.height + LINE_HEIGHT / 2
    left += NUMBER_WIDTH if signed else 0
    add_line(picture, text)
    picture.shapes += draw_bar(left, middle, largest, signed)
    picture.width = max(picture.width, left + BAR_WIDTH + NUMBER_WIDTH)


def add_grid(picture: Picture, block: dict[str, Any]) -> None:
    """Extend the picture downwards by the heatmaps of a block."""
    data: Floats = block["data"]
    signed = "heads" not in block  # as in attribution
    largest = float(abs(data).max())
    add_scale(picture, caption_of(block), largest, signed)
    titles = titles_of(block)
    rows, columns = (
        [shortened_title(token.text, LONGEST_LABEL) for token in block[axis]]
        for axis in ("rows", "columns")
    )
    grid = grid_of(data, titles, rows, columns)
    matrices = data.reshape(len(titles), *data.shape[-2:])  # (N, T, S)
    width, height = grid.cell * len(columns), grid.cell * len(rows)
    for i, (title, matrix) in enumerate(zip(titles, matrices, strict=True)):
        x = HEATMAP_GAP + grid.left + i % grid.across * grid.step_across
        y = picture.height + TITLE_HEIGHT + i // grid.across * grid.step_down
        cells = coloured(shrunk(matrix, math.ceil(height), math.ceil(width)), largest, signed)
        picture.shapes.append(Label(x, y - TITLE_HEIGHT / 2, title, "start"))
        picture.shapes.append(Cells(x, y, width, height, cells))
        label_rows(picture, x, y, grid.cell, rows)
        label_columns(picture, x, y + height, grid.cell, columns)
    picture.width = max(picture.width, HEATMAP_GAP + grid.across * grid.step_across)
    picture.height += grid.down * grid.step_down


def grid_of(
    data: Floats, titles: Sequence[str], rows: Sequence[str], columns: Sequence[str]
) -> Grid:
    across = heatmaps_across(data)
    down = math.ceil(len(titles) / across)
    cell = min(
        LARGEST_CELL, LARGEST_GRID / (across * len(columns)), LARGEST_GRID / (down * len(rows))
    )
    left, below = (max(map(width_of, names)) for names in (rows, columns))
    step_across = left + max(cell * len(columns), *map(width_of, titles)) + HEATMAP_GAP
    step_down = TITLE_HEIGHT + cell * len(rows) + below + HEATMAP_GAP
    return Grid(across, down, cell, left, step_across, step_down)


def heatmaps_across(data: Floats) -> int:
    """Return how many heatmaps are side by side: all heads, or about a square for one layer."""
    if data.ndim == 4 and len(data) > 1:
        return data.shape[1]
    count = math.prod(data.shape[:-2])
    return min(count, max(1, round(math.sqrt(count * data.shape[-2] / data.shape[-1]))))


def label_rows(
    picture: Picture, left: float, top: float, cell: float, labels: Sequence[str]
) -> None:
    """Write the labels left of the cells: every second, third, ... if they would overlap."""
    for i in range(0, len(labels), math.ceil(LINE_HEIGHT / cell)):
        picture.shapes.append(Label(left - LABEL_GAP, top + (i + 0.5) * cell, labels[i], "end"))


def label_columns(
    picture: Picture, left: float, bottom: float, cell: float, labels: Sequence[str]
) -> None:
    """Write the labels below the cells, upwards if one is wider than a cell."""
    upwards = max(map(width_of, labels)) > cell
    for i in range(0, len(labels), math.ceil(LINE_HEIGHT / cell)):
        x = left + (i + 0.5) * cell
        if upwards:
            label = Label(x, bottom + LABEL_GAP, labels[i], "end", upwards=True)
        else:
            label = Label(x, bottom + LINE_HEIGHT / 2 + LABEL_GAP / 2, labels[i])
        picture.shapes.append(label)


def titles_of(block: dict[str, Any]) -> list[str]:
    """Return the title of each matrix, for example "mean of layers 0, 2; head 1", as
    service/web/view/block.js does. The only matrix of a block without layers needs none."""
    if "layers" not in block:
        return [""]
    layers, heads = (
        [f"{axis}s {listed(block[f'{axis}s'])}"]
        if f"reduce_{axis}s" in block
        else [f"{axis} {i}" for i in block[f"{axis}s"]]
        for axis in ("layer", "head")
    )
    of_layers, of_heads = (block.get(f"reduce_{axis}s") for axis in ("layer", "head"))
    before = f"{of_layers} of " if of_layers else ""
    between = f"; {of_heads} of " if of_heads else "; "
    if of_layers and of_layers == of_heads:
        between = ", "
    return [f"{before}{layer}{between}{head}" for layer in layers for head in heads]


def listed(indices: Sequence[int]) -> str:
    first, last = indices[0], indices[-1]
    if len(indices) > 2 and list(indices) == list(range(first, last + 1)):
        return f"{first}\N{EN DASH}{last}"
    return ", ".join(map(str, indices))


def shortened_title(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"
