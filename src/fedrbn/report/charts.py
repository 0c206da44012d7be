"""The kinds of charts on the page, as SVG: rows of dots, lines, a heat map, a scatter."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from fedrbn.report.svg import SHAPES, WIDTH, Mark, Scale, drawing, element, hit, line, shape, spread, text, ticks

ROW = 30
"""Height of a row of dots."""
LINE_HEIGHT = 13
CROWDED = 16
"""With more points than this a line is drawn without symbols; they appear when pointed at."""
LETTER = 6.8
"""Width of a letter, roughly."""
LONGEST = 16
"""Characters of a label beside a chart; the whole name is in the mark's value and in the table."""


def percent(share: float) -> str:
    """A share as people read it."""
    return f"{100 * share:.1f} %"


def short(label: str, longest: int = LONGEST) -> str:
    """A label that fits beside a chart."""
    return label if len(label) <= longest else f"{label[: longest - 1]}…"


@dataclass(frozen=True)
class DotRow:
    """A row of dots: a value for each series that has one, as a share of 1."""

    label: str
    values: Mapping[str, float]


def dots(title: str, rows: Sequence[DotRow], series: Sequence[str], apart: int | None = None) -> Markup:
    """One row for each label and one dot for each series, from 0 to 100 %; rows from `apart` on stand by themselves."""
    left = 104
    key, top = _key(series, 8)
    x = Scale(0, 1, left, WIDTH - 22)
    places = [top + ROW * i + (ROW if apart is None or i < apart else ROW + 10) / 2 for i in range(len(rows))]
    bottom = (places[-1] if places else top) + ROW / 2 + 4
    background = [key]
    for tick in ticks(0, 1):
        background += [line(x(tick), top, x(tick), bottom, "grid")]
        background += [text(f"{100 * tick:.0f}{' %' * (tick == 1)}", x(tick), bottom + 14, "tick", "middle")]
    found = []
    for row, y in zip(rows, places, strict=True):
        background.append(text(short(row.label), left - 10, y + 4, "label", "end"))
        if row.values:
            background.append(line(x(min(row.values.values())), y, x(max(row.values.values())), y, "link"))
        for kind, name in enumerate(series):
            if name in row.values:
                place, lower = x(row.values[name]), y + (kind - (len(series) - 1) / 2) * min(8, 20 / len(series))
                symbol = Markup("").join((hit(place, lower, 7), shape(kind, place, lower, size=4)))
                found.append(Mark(f"{row.label}: {name} {percent(row.values[name])}", symbol))
    return drawing(title, bottom + 20, background, found)


def _key(series: Sequence[str], left: float, *, numbered: bool = False) -> tuple[Markup, float]:
    """The series by symbol and name, above a chart, on as many lines as they need; and where the chart may begin."""
    parts: list[Markup] = []
    x, y = left, 12.0
    for kind, name in enumerate(series):
        size = 28 + LETTER * len(short(name, 40))
        if x > left and x + size > WIDTH:
            x, y = left, y + 17
        parts += [_symbol(kind, x + 5, y, numbered), text(short(name, 40), x + 15, y + 4, "label")]
        x += size
    return element("g", *parts), y + 18


@dataclass(frozen=True)
class Series:
    """A line: its name and its points; what is not a finite number leaves a gap."""

    name: str
    points: Sequence[tuple[float, float]]


def lines(
    title: str,
    series: Sequence[Series],
    x_name: str,
    *,
    shares: bool,
    chosen: tuple[float, str] | None = None,
) -> Markup:
    """Lines over x with their names at their ends; y is a share of 1, or else a number from 0 up."""
    values = [y for each in series for _, y in each.points if math.isfinite(y)]
    across = [x for each in series for x, _ in each.points]
    left, right, top, bottom = 40, WIDTH - 96, 26, 206
    high = 1.0 if shares else max(values, default=1.0) or 1.0
    x = Scale(min(across, default=0), max(across, default=1), left, right)
    y = Scale(0, high, bottom, top)
    background = [*_axes(x, y, x_name, shares)]
    if chosen is not None:
        background.append(line(x(chosen[0]), top - 6, x(chosen[0]), bottom, "chosen"))
        anchor = "end" if x(chosen[0]) > (left + right) / 2 else "start"
        background.append(text(chosen[1], x(chosen[0]), top - 12, "tick", anchor))
    found: list[Mark] = []
    ends: list[tuple[int, str, float]] = []
    for kind, each in enumerate(series):
        shown = [(a, b) for a, b in each.points if math.isfinite(b)]
        if not shown:
            continue
        path = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in shown)
        background.append(element("polyline", points=path, class_=f"line line-{kind % 6}"))
        ends.append((kind, each.name, y(shown[-1][1])))
        quiet = " quiet" if len(shown) > CROWDED else ""
        for a, b in shown:
            value = percent(b) if shares else f"{b:.3g}"
            symbol = element("g", hit(x(a), y(b), 7), shape(kind, x(a), y(b), size=3.4), class_=f"point{quiet}")
            found.append(Mark(f"{each.name}, {x_name} {a:g}: {value}", symbol))
    for (kind, name, _), place in zip(ends, spread([end[2] for end in ends], LINE_HEIGHT), strict=True):
        background.append(shape(kind, right + 12, place, size=3.4))
        background.append(text(short(name, 14), right + 20, place + 4, "label"))
    return drawing(title, bottom + 38, background, found)


def _axes(x: Scale, y: Scale, x_name: str, shares: bool) -> list[Markup]:
    """Horizontal grid lines with numbers, and numbers below."""
    parts = []
    steps = ticks(y.low, y.high, 4)
    for tick in steps:
        name = f"{100 * tick:.0f}{' %' * (tick == steps[-1])}" if shares else f"{tick:g}"
        parts += [line(x.start, y(tick), x.end, y(tick), "grid"), text(name, x.start - 6, y(tick) + 4, "tick", "end")]
    for tick in ticks(x.low, x.high, 5):
        parts.append(text(f"{tick:g}", x(tick), y.start + 16, "tick", "middle"))
    parts.append(text(x_name, (x.start + x.end) / 2, y.start + 32, "label", "middle"))
    return parts


def heat(title: str, rows: Sequence[str], columns: Sequence[str], values: Sequence[Sequence[float]]) -> Markup:
    """A cell for each row and column, the darker the nearer its share is to 1; large cells show their number."""
    left = 104
    slanted = max((len(name) for name in columns), default=0) > 4
    top = 20 + (min(max(len(short(name)) for name in columns), LONGEST) * 4.6 if slanted else 0)
    across = min(46.0, (WIDTH - left - 24) / max(1, len(columns)))
    down = 22 if len(rows) <= 40 else 14
    background = []
    for j, name in enumerate(columns):
        x, y = left + across * (j + 0.5), top - 6
        turned = f"rotate(-45 {x:.1f} {y:.1f})" if slanted else None
        anchor = None if slanted else "middle"
        background.append(element("text", short(name), x=x, y=y, class_="tick", transform=turned, text_anchor=anchor))
    found = []
    for i, name in enumerate(rows):
        background.append(text(short(name), left - 8, top + down * (i + 0.5) + 4, "tick", "end"))
        for j, donor in enumerate(columns):
            share = min(1.0, max(0.0, values[i][j]))
            cell = _cell(left + across * j, top + down * i, across, down, share)
            found.append(Mark(f"{name} from {donor}: {percent(share)}", cell))
    return drawing(title, top + down * len(rows) + 6, background, found)


def _cell(x: float, y: float, width: float, height: float, share: float) -> Markup:
    inner = {"x": x + 1, "y": y + 1, "width": width - 2, "height": height - 2}
    parts = [
        element("rect", **inner, class_="cell-back"),
        element("rect", **inner, class_="cell", fill_opacity=share),
    ]
    if width >= 30 and height >= 18 and share >= 0.005:
        # black and white change places at 0.74 on the light page and 0.54 on the dark: always 4.5 to 1 or more
        tone = "low" if share < 0.54 else "middle" if share < 0.74 else "high"
        parts.append(text(f"{100 * share:.0f}", x + width / 2, y + height / 2 + 4, f"on-{tone}", "middle"))
    return Markup("").join(parts)


@dataclass(frozen=True)
class Point:
    """A point of a scatter: shares of 1; hollow ones are somebody else's numbers."""

    label: str
    x: float
    y: float
    hollow: bool = False
    detail: str = ""
    """More of what it is, after its label."""


def scatter(title: str, points: Sequence[Point], x_name: str, y_name: str) -> Markup:
    """Points by two shares. Few labels have a symbol each and stand beside their points; many have a number each."""
    labels = list(dict.fromkeys(point.label for point in points))
    numbered = len(labels) > SHAPES
    key, top = _key(labels, 8, numbered=numbered)
    left, right, top, bottom = 44, WIDTH - 14, top + 22, top + 250
    x = Scale(*_bounds([point.x for point in points]), left, right)
    y = Scale(*_bounds([point.y for point in points]), bottom, top)
    background = [
        key,
        text(f"{y_name}, %", 4, top - 14, "label"),
        text(f"{x_name}, %", right, bottom + 34, "label", "end"),
    ]
    for tick in ticks(x.low, x.high):
        background.append(line(x(tick), top, x(tick), bottom, "grid"))
        background.append(text(f"{100 * tick:.0f}", x(tick), bottom + 16, "tick", "middle"))
    for tick in ticks(y.low, y.high):
        background.append(line(left, y(tick), right, y(tick), "grid"))
        background.append(text(f"{100 * tick:.0f}", left - 6, y(tick) + 4, "tick", "end"))
    places = [(x(point.x), y(point.y)) for point in points]
    if not numbered:
        background += _names([point.label for point in points], places)
    found = [
        Mark(
            f"{point.label}{point.detail}: {x_name} {percent(point.x)}, {y_name} {percent(point.y)}",
            Markup("").join((hit(*place), _symbol(labels.index(point.label), *place, numbered, point.hollow))),
        )
        for point, place in zip(points, places, strict=True)
    ]
    return drawing(title, bottom + 40, background, found)


def _symbol(kind: int, x: float, y: float, numbered: bool, hollow: bool = False) -> Markup:
    """The symbol of a label, or its number in a disc."""
    if not numbered:
        return shape(kind, x, y, hollow=hollow)
    look = "hollow" if hollow else "filled"
    disc = element("circle", cx=x, cy=y, r=7.5, class_=f"mark-0 {look}")
    return Markup("").join((disc, text(str(kind + 1), x, y + 3.2, f"number-{look}", "middle")))


def _bounds(values: Sequence[float]) -> tuple[float, float]:
    """Tens of percent around the values."""
    low = math.floor(10 * (min(values) - 0.02)) / 10
    high = math.ceil(10 * (max(values) + 0.02)) / 10
    return max(0.0, low), min(1.0, max(high, low + 0.1))


def _names(names: Sequence[str], places: Sequence[tuple[float, float]]) -> list[Markup]:
    """Every name once, beside one of its points, where it covers nothing and cannot be taken for another's."""
    taken = [(a - 6, b - 6, a + 6, b + 6) for a, b in places]
    drawn: list[Markup] = []
    named: set[str] = set()
    for name, (a, b) in zip(names, places, strict=True):
        rivals = [place for other, place in zip(names, places, strict=True) if other != name]
        if name in named or any(math.hypot(a - x, b - y) < 10 for x, y in rivals):
            continue
        shown = short(name, 24)
        size = LETTER * len(shown)
        for anchor, start, low in (
            ("start", a + 9, b + 4),
            ("end", a - 9 - size, b + 4),
            ("middle", a - size / 2, b - 10),
        ):
            box = (start, low - 9, start + size, low + 2)
            if start < 44 or start + size > WIDTH or any(_overlap(box, other) for other in taken):
                continue
            at = {"start": start, "end": start + size, "middle": a}[anchor]
            drawn.append(text(shown, at, low, "label", anchor))
            taken.append(box)
            named.add(name)
            break
    return drawn


Box = tuple[float, float, float, float]


def _overlap(first: Box, second: Box) -> bool:
    return first[0] < second[2] and second[0] < first[2] and first[1] < second[3] and second[1] < first[3]
