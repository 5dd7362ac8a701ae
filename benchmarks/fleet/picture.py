"""Draw p99 against load: one replica, measured and simulated, and a fleet by its routes."""

import math
from collections.abc import Mapping, Sequence

from service.formats.picture import Colour, Dot, Label, Line, Picture
from service.formats.svg import to_svg

WIDTH, HEIGHT, MARGIN, GAP = 320.0, 240.0, 60.0, 150.0
GRID: Colour = (220, 220, 220)
COLOURS: list[Colour] = [(31, 91, 160), (200, 90, 0), (60, 140, 60), (150, 60, 140), (90, 90, 90)]
LOADS = (0.0, 0.25, 0.5, 0.75, 1.0)
Points = Sequence[tuple[float, float]]  # load as a share of the capacity, p99 in milliseconds


def draw_scale(
    measured: Points, simulated: Points, routes: Mapping[str, Points], title: str
) -> bytes:
    """Return the SVG."""
    width = 2 * MARGIN + 2 * WIDTH + GAP + 100
    picture = Picture(width, HEIGHT + 2 * MARGIN, title)
    one = Panel(picture, MARGIN, [*measured, *simulated], "one replica, words")
    one.line(simulated, COLOURS[0], "simulated")
    for load, p99 in measured:
        picture.shapes.append(Dot(*one.place(load, p99), COLOURS[1]))
    picture.shapes.append(Label(one.left + 12, MARGIN + 14, "dots: measured", "start"))
    everything = [point for points in routes.values() for point in points]
    fleet = Panel(picture, MARGIN + WIDTH + GAP, everything, "a fleet, sentences, by route")
    for (name, points), colour in zip(routes.items(), COLOURS, strict=True):
        fleet.line(points, colour, name)
    return to_svg(picture)


class Panel:
    """One plot. Its upward axis is logarithmic, from a power of ten to the highest point."""

    def __init__(self, picture: Picture, left: float, points: Points, caption: str) -> None:
        self.picture, self.left = picture, left
        heights = [p99 for _, p99 in points]
        self.low = 10 ** math.floor(math.log10(min(heights)))
        self.high = 10 ** math.ceil(math.log10(max(heights)))
        self._taken: list[float] = []  # heights of the labels of lines
        for load in LOADS:
            x, _ = self.place(load, self.low)
            picture.shapes.append(Line([(x, MARGIN), (x, MARGIN + HEIGHT)], GRID))
            picture.shapes.append(Label(x, MARGIN + HEIGHT + 14, f"{load:.0%}"))
        for tick in self.ticks():
            _, y = self.place(0, tick)
            picture.shapes.append(Line([(left, y), (left + WIDTH, y)], GRID))
            picture.shapes.append(Label(left - 6, y, f"{tick:g}", "end"))
        middle = left + WIDTH / 2
        picture.shapes.append(Label(middle, MARGIN - 16, caption))
        picture.shapes.append(Label(middle, MARGIN + HEIGHT + 34, "load, of the capacity"))
        place = MARGIN + HEIGHT / 2
        picture.shapes.append(Label(left - 48, place, "p99, milliseconds", "middle", upwards=True))

    def ticks(self) -> list[float]:
        count = round(math.log10(self.high / self.low))
        return [self.low * 10**i for i in range(count + 1)]

    def place(self, load: float, p99: float) -> tuple[float, float]:
        height = math.log(p99 / self.low) / math.log(self.high / self.low)
        return self.left + load * WIDTH, MARGIN + (1 - height) * HEIGHT

    def line(self, points: Points, colour: Colour, name: str) -> None:
        """Draw a line, and its name at its end, below the names that are already there."""
        places = [self.place(*point) for point in points]
        x, y = places[-1]
        while any(abs(y - taken) < 14 for taken in self._taken):
            y += 2
        self._taken.append(y)
        dash = [(x + 2, y), (x + 12, y)]
        self.picture.shapes += [Line(places, colour), Line(dash, colour)]
        self.picture.shapes.append(Label(x + 16, y, name, "start"))
