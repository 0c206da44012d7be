"""The small parts that charts are drawn with: escaped elements, scales, ticks, marks that can be pointed at."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from markupsafe import Markup, escape

WIDTH = 400
"""Of every chart, in its own units: about the pixels of a phone, so that text stays readable there."""


def element(name: str, *children: str, **attributes: str | float | None) -> Markup:
    """An SVG element. Text and attributes are escaped, elements are not; `class_` is class, `text_anchor` text-anchor.

    Numbers are rounded to a hundredth, which is finer than any screen; attributes that are None are left out.
    """
    given = {key.rstrip("_").replace("_", "-"): value for key, value in attributes.items() if value is not None}
    given = {"viewBox" if key == "viewbox" else key: value for key, value in given.items()}
    opening = Markup("").join(Markup(' {}="{}"').format(key, _attribute(value)) for key, value in given.items())
    inside = Markup("").join(escape(child) for child in children)
    return Markup("<{0}{1}>{2}</{0}>").format(name, opening, inside)


def _attribute(value: str | float) -> str:
    return value if isinstance(value, str) else f"{round(value, 2):g}"


def group(children: Iterable[str], **attributes: str | float | None) -> Markup:
    """Several elements as one."""
    return element("g", *children, **attributes)


def text(content: str, x: float, y: float, class_: str | None = None, anchor: str | None = None) -> Markup:
    """A line of text; `anchor` is start (the default), middle or end."""
    return element("text", content, x=x, y=y, class_=class_, text_anchor=anchor)


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> Markup:
    """A straight line."""
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_)


@dataclass(frozen=True)
class Scale:
    """From values to places: `low` goes to `start`, `high` to `end`."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """The place of a value."""
        span = self.high - self.low
        return self.start + (self.end - self.start) * ((value - self.low) / span if span else 0.5)


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers between two bounds: multiples of 1, 2 or 5 times a power of ten."""
    if not high > low:
        return [low]
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [number * step for number in range(first, math.floor(high / step + 1e-9) + 1)]


def spread(places: Sequence[float], gap: float) -> list[float]:
    """The places, moved apart where they are closer than `gap`; their order stays. For labels beside lines."""
    order = sorted(range(len(places)), key=lambda i: places[i])
    moved = [places[i] for i in order]
    for _ in range(20):
        for i, (above, below) in enumerate(pairwise(moved)):
            if below - above < gap:
                middle = (above + below) / 2
                moved[i], moved[i + 1] = middle - gap / 2, middle + gap / 2
    result = [0.0] * len(places)
    for position, i in enumerate(order):
        result[i] = moved[position]
    return result


SHAPES = 6
"""How many series can be told apart, each by a shape and a colour of its own."""


_LEFT_OF_CROSS = [(0, 0.5), (-0.8, 1.3), (-1.3, 0.8), (-0.5, 0), (-1.3, -0.8), (-0.8, -1.3)]


def shape(kind: int, x: float, y: float, *, hollow: bool = False, size: float = 4.6) -> Markup:
    """The symbol of a series: circle, diamond, square, triangle, triangle on its tip, cross."""
    kind %= SHAPES
    look = f"mark-{kind} {'hollow' if hollow else 'filled'}"
    if kind == 0:
        return element("circle", cx=x, cy=y, r=size, class_=look)
    if kind == 2:
        side = 1.7 * size
        return element("rect", x=x - side / 2, y=y - side / 2, width=side, height=side, class_=look)
    corners = {
        1: [(0, -1.3), (1.3, 0), (0, 1.3), (-1.3, 0)],
        3: [(0, -1.2), (1.15, 0.9), (-1.15, 0.9)],
        4: [(0, 1.2), (1.15, -0.9), (-1.15, -0.9)],
        5: [(0, -0.5), (0.8, -1.3), (1.3, -0.8), (0.5, 0), (1.3, 0.8), (0.8, 1.3), *_LEFT_OF_CROSS],
    }[kind]
    points = " ".join(f"{x + size * dx:.2f},{y + size * dy:.2f}" for dx, dy in corners)
    return element("polygon", points=points, class_=look)


@dataclass(frozen=True)
class Mark:
    """Something in a chart that has a value: pointing at it or going to it with the keyboard shows `label`."""

    label: str
    drawing: Markup


def marks(found: Sequence[Mark]) -> Markup:
    """The marks of a chart. Together they are one stop of the Tab key; arrow keys lead from one to the next."""
    return group(
        (
            element(
                "g",
                mark.drawing,
                class_="mark",
                role="img",
                aria_label=mark.label,
                tabindex="0" if index == 0 else "-1",
            )
            for index, mark in enumerate(found)
        ),
        class_="marks",
    )


def hit(x: float, y: float, radius: float = 9) -> Markup:
    """An invisible disc that makes a small mark easy to point at."""
    return element("circle", cx=x, cy=y, r=radius, class_="hit")


def drawing(title: str, height: float, background: Iterable[str], found: Sequence[Mark]) -> Markup:
    """A whole chart: what screen readers leave out (axes, lines, labels), then the marks with their values."""
    return element(
        "svg",
        group(background, aria_hidden="true"),
        marks(found),
        viewbox=f"0 0 {WIDTH} {math.ceil(height)}",
        role="group",
        aria_roledescription="chart",
        aria_label=f"{title}. Arrow keys go from value to value; the table below has all of them.",
        class_="chart",
    )
