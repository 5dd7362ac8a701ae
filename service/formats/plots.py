"""Draw attention without a model: heatmaps, and the plot of a regression."""

import numpy as np

from service.formats.colours import BAR_WIDTH, NUMBER_WIDTH, Floats, coloured, draw_bar, shrunk
from service.formats.picture import Cells, Colour, Dot, Label, Line, Picture

GRID: Colour = (204, 204, 204)
BLUE, ORANGE, GREY = (31, 91, 160), (200, 90, 0), (120, 120, 120)
SIDE = 320.0  # side of a heatmap or plot
PLOT_MARGIN = 70.0  # around each heatmap or plot, for its labels
CAPTION, TICK, BESIDE = 14.0, 14.0, 6.0  # distances to labels above, below and left of a plot
MOST_POINTS = 2000  # most points of a line or a cloud; more are thinned to every second, third, ...
MOST_CELLS = 200  # most cells along a side; larger heatmaps are drawn from means of blocks


def draw_attention(weights: Floats, points: Floats, prediction: Floats, truth: Floats) -> Picture:
    """Draw the plot of a regression, then a heatmap for each sequence of `weights` (B, T, S).

    The plot shows points (2, S), prediction (2, T) and truth (2, T): row 0 is x, row 1 is y. Truth
    may be empty. Without points there is no plot.
    """
    plots = 1 if points.size else 0
    picture = Picture(
        width=PLOT_MARGIN + (plots + len(weights)) * (SIDE + PLOT_MARGIN),
        height=SIDE + 2 * PLOT_MARGIN,
        title=f"attention of {weights.shape[1]} queries over {weights.shape[2]} keys",
    )
    if plots:
        draw_plot(picture, points, prediction, truth)
    for i, matrix in enumerate(weights, plots):
        draw_heatmap(picture, PLOT_MARGIN + i * (SIDE + PLOT_MARGIN), matrix)
    return picture


def draw_heatmap(picture: Picture, left: float, weights: Floats) -> None:
    """Draw weights (T, S), queries downwards; the brightest colour is the largest weight."""
    queries, keys = weights.shape
    largest = float(weights.max())
    cells = coloured(shrunk(weights, MOST_CELLS, MOST_CELLS), largest)
    picture.shapes.append(Cells(left, PLOT_MARGIN, SIDE, SIDE, cells))
    for query in {0, queries - 1}:
        middle = PLOT_MARGIN + (query + 0.5) / queries * SIDE
        picture.shapes.append(Label(left - BESIDE, middle, str(query), "end"))
    for key in {0, keys - 1}:
        middle = left + (key + 0.5) / keys * SIDE
        picture.shapes.append(Label(middle, PLOT_MARGIN + SIDE + TICK, str(key)))
    middle, bar = PLOT_MARGIN - CAPTION, left + SIDE - NUMBER_WIDTH - BAR_WIDTH
    picture.shapes.append(Label(left, middle, "query x key", "start"))
    picture.shapes += draw_bar(bar, middle, largest)


def draw_plot(picture: Picture, points: Floats, prediction: Floats, truth: Floats) -> None:
    """Draw the points as dots, the prediction as a line and the truth as a dashed one."""
    everything = np.concatenate([points, prediction, truth], axis=1)  # (2, ...)
    low, high = everything.min(1), everything.max(1)

    def place(xy: Floats) -> list[tuple[float, float]]:
        """Return places in the picture of points (2, N), thinned to at most MOST_POINTS."""
        some = xy[:, :: -(-xy.shape[1] // MOST_POINTS) or 1]
        x, y = (some - low[:, None]) / np.where(high > low, high - low, 1.0)[:, None]
        places = zip(
            (PLOT_MARGIN + x * SIDE).tolist(), (PLOT_MARGIN + SIDE - y * SIDE).tolist(), strict=True
        )
        return list(places)

    draw_axes(picture, low, high)
    picture.shapes.extend(Dot(x, y, GREY) for x, y in place(points))
    if truth.size:
        picture.shapes.append(line_or_dot(place(truth), ORANGE, dashed=True))
    picture.shapes.append(line_or_dot(place(prediction), BLUE))
    caption = "points, prediction (blue)" + (", truth (orange)" if truth.size else "")
    picture.shapes.append(Label(PLOT_MARGIN + SIDE / 2, PLOT_MARGIN - CAPTION, caption))


def draw_axes(picture: Picture, low: Floats, high: Floats) -> None:
    """Draw a frame, and next to it the smallest and the largest x and y."""
    left = top = PLOT_MARGIN
    right, bottom = left + SIDE, top + SIDE
    frame = [(left, top), (right, top), (right, bottom), (left, bottom), (left, top)]
    picture.shapes += [
        Line(frame, GRID),
        Label(left, bottom + TICK, f"{low[0]:.3g}", "start"),
        Label(right, bottom + TICK, f"{high[0]:.3g}", "end"),
        Label(left - BESIDE, bottom, f"{low[1]:.3g}", "end"),
        Label(left - BESIDE, top, f"{high[1]:.3g}", "end"),
    ]


def line_or_dot(
    places: list[tuple[float, float]], colour: Colour, dashed: bool = False
) -> Line | Dot:
    """Return a line, or a dot where all places are about the same: such a line has no length."""
    if np.ptp(places, axis=0).max() < 1:
        return Dot(*places[0], colour)
    return Line(places, colour, dashed)
