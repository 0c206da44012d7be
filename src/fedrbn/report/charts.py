"""The charts of the page, drawn in the style of the figures: rows of dots, lines, a heat map, a scatter plot."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.transforms import Bbox

from fedrbn.figures import style
from fedrbn.figures.curves import Curve, draw_curves
from fedrbn.report import svg
from fedrbn.report.svg import Value, embedded

DISTINCT = len(style.METHODS)
"""The number of series that can be distinguished, each by its own symbol and colour."""
ROW = 30
"""Height of a row of dots."""
CROWDED = 16
"""With more points than this a line is drawn without symbols."""


def percent(share: float) -> str:
    """A share as text in percent."""
    return f"{100 * share:.1f} %"


def short(label: str, longest: int = 16) -> str:
    """A label that fits next to a chart; the full name is in the mark's value and in the table."""
    return label if len(label) <= longest else f"{label[: longest - 1]}…"


def _axes(height: float) -> Axes:
    return style.page(svg.WIDTH / 72, height / 72).subplots()


def _key(axes: Axes, names: Mapping[str, Line2D]) -> None:
    """The legend above a chart: series by symbol and name, on as many lines as needed."""
    across = max(1, svg.WIDTH // (30 + 7 * max(len(short(name, 40)) for name in names)))
    found: dict[str, Any] = {
        "handles": list(names.values()),
        "labels": [short(name, 40) for name in names],
        "ncols": across,
    }
    axes.figure.legend(loc="outside upper left", handletextpad=0.3, columnspacing=1.0, borderpad=0, **found)


def _symbol(mark: style.Mark, *, hollow: bool = False) -> dict[str, Any]:
    face = {"markerfacecolor": svg.BACK, "markeredgecolor": mark.colour} if hollow else {"markeredgecolor": svg.BACK}
    return {"linestyle": "", "marker": mark.marker, "color": mark.colour, **face}


@dataclass(frozen=True)
class DotRow:
    """A row of dots: a value for each series that has one, as a share of 1."""

    label: str
    values: Mapping[str, float]


def dots(title: str, rows: Sequence[DotRow], series: Sequence[str], apart: int | None = None) -> Markup:
    """One row per label and one dot per series, from 0 to 100 %; rows from `apart` on are set apart."""
    with style.applied(svg.LOOK):
        axes = _axes(ROW * len(rows) + 56)
        looks = style.marks(series)
        places = [i + (1 / 3 if apart is not None and i >= apart else 0) for i in range(len(rows))]
        values = []
        for row, middle in zip(rows, places, strict=True):
            if row.values:
                ends = min(row.values.values()), max(row.values.values())
                axes.plot([100 * end for end in ends], [middle] * 2, color=svg.RULE, linewidth=3)
            for kind, name in enumerate(series):
                if name in row.values:
                    x, y = (
                        100 * row.values[name],
                        middle + (kind - (len(series) - 1) / 2) * min(0.27, 0.7 / len(series)),
                    )
                    axes.plot(x, y, **_symbol(looks[name]))
                    values.append(Value(f"{row.label}: {name} {percent(row.values[name])}", x, y))
        axes.set_yticks(places, [short(row.label) for row in rows], color=svg.INK)
        axes.set(xlim=(0, 100), ylim=(max(places, default=0) + 0.6, -0.6))
        axes.xaxis.set_major_formatter("{x:.0f} %")
        axes.grid(axis="x")
        axes.grid(visible=False, axis="y")
        _key(axes, {name: Line2D([], [], **_symbol(look)) for name, look in looks.items()})
        return embedded(title, axes, values)


@dataclass(frozen=True)
class Series:
    """A line: its name and its points; a value that is not finite leaves a gap."""

    name: str
    points: Sequence[tuple[float, float]]


def lines(
    title: str, series: Sequence[Series], x_name: str, *, shares: bool, chosen: tuple[float, str] | None = None
) -> Markup:
    """Lines over x with their names at their ends; y is a share of 1, or a number from 0 up."""
    unit = 100 if shares else 1
    curves, values = {}, []
    for each in series:
        shown = [(x, unit * y) for x, y in each.points if math.isfinite(y)]
        if shown:
            over, heights = zip(*shown, strict=True)
            curves[each.name] = Curve(over, heights, heights, heights)
        for x, y in shown:
            values.append(Value(f"{each.name}, {x_name} {x:g}: {f'{y:.1f} %' if shares else f'{y:.3g}'}", x, y))
    with style.applied(svg.LOOK):
        axes = _axes(244)
        ends = draw_curves(axes, curves, style.marks(list(curves)), symbols=CROWDED)
        axes.set(xlabel=x_name, ylim=(0, 100 if shares else None))
        if shares:
            axes.yaxis.set_major_formatter("{x:.0f} %")
        if chosen is not None:
            axes.axvline(chosen[0], color=svg.MUTED, linewidth=1, linestyle=":")
            axes.set_title(chosen[1], color=svg.MUTED, loc="right")
        style.name_ends({axes: ends})
        return embedded(title, axes, values)


def heat(title: str, rows: Sequence[str], columns: Sequence[str], values: Sequence[Sequence[float]]) -> Markup:
    """A cell for each row and column, darker for a share closer to 1; large cells show their number."""
    shares = [[min(1.0, max(0.0, value)) for value in row] for row in values]
    slanted = max(map(len, columns), default=0) > 4
    down = 22 if len(rows) <= 40 else 14
    across = max(6, len(columns))
    with style.applied(svg.LOOK):
        axes = _axes(down * len(rows) + (24 + 5.2 * len(short(max(columns, key=len))) if slanted else 30))
        axes.add_patch(Rectangle((-0.5, -0.5), len(columns), len(rows), facecolor=svg.PANEL, edgecolor="none"))
        colours = [[to_rgba(svg.HEAT, share) for share in row] for row in shares]
        edges = [[i - 0.5 for i in range(len(names) + 1)] for names in (columns, rows)]
        axes.pcolormesh(*edges, colours, edgecolors=svg.BACK, linewidth=1.5)
        found = []
        for i, name in enumerate(rows):
            for j, donor in enumerate(columns):
                share = shares[i][j]
                found.append(Value(f"{name} from {donor}: {percent(share)}", j, i))
                if across <= 9 and down >= 18 and share >= 0.005:
                    # black and white text switch at 0.74 on the light page and 0.54 on the dark: always 4.5 to 1
                    tone = svg.ON_LOW if share < 0.54 else svg.ON_MIDDLE if share < 0.74 else svg.ON_HIGH
                    axes.text(j, i, f"{100 * share:.0f}", color=tone, ha="center", va="center_baseline")
        turned: dict[str, Any] = {"rotation": 45, "ha": "left", "rotation_mode": "anchor"} if slanted else {}
        axes.xaxis.tick_top()
        axes.set_xticks(range(len(columns)), [short(name) for name in columns], **turned)
        axes.set_yticks(range(len(rows)), [short(name) for name in rows])
        axes.set(xlim=(-0.5, across - 0.5), ylim=(len(rows) - 0.5, -0.5))
        axes.grid(visible=False)
        return embedded(title, axes, found, cells=True)


@dataclass(frozen=True)
class ScatterPoint:
    """A point of a scatter plot: shares of 1; hollow points are the paper's numbers."""

    label: str
    x: float
    y: float
    hollow: bool = False
    detail: str = ""
    """Further description after its label."""


def scatter(title: str, points: Sequence[ScatterPoint], x_name: str, y_name: str) -> Markup:
    """Points by two shares. A few labels get one symbol each and are next to their points; many get numbers."""
    labels = list(dict.fromkeys(point.label for point in points))
    numbered = len(labels) > DISTINCT
    looks = dict.fromkeys(labels, style.Mark(style.BLUE, "o")) if numbered else style.marks(labels)
    with style.applied({**svg.LOOK, **({"lines.markersize": 15} if numbered else {})}):
        axes = _axes(290 + 17 * len(labels) * numbered / 2)
        for point in points:
            place = 100 * point.x, 100 * point.y
            axes.plot(*place, **_symbol(looks[point.label], hollow=point.hollow))
            if numbered:
                number = str(labels.index(point.label) + 1)
                axes.text(
                    *place, number, color=svg.INK if point.hollow else svg.BACK, ha="center", va="center_baseline"
                )
        axes.set(xlim=_tens([point.x for point in points]), ylim=_tens([point.y for point in points]))
        axes.set(xlabel=f"{x_name} in %", ylabel=f"{y_name} in %")
        axes.grid(axis="both", color=svg.GRID)
        named = {f"{index}  {label}" if numbered else label: label for index, label in enumerate(labels, start=1)}
        empty: dict[str, Any] = {"marker": "", "linestyle": ""}
        key = {name: Line2D([], [], **(empty if numbered else _symbol(looks[of]))) for name, of in named.items()}
        _key(axes, key)
        if not numbered:
            _name_points(axes, points)
        values = [
            Value(
                f"{point.label}{point.detail}: {x_name} {percent(point.x)}, {y_name} {percent(point.y)}",
                100 * point.x,
                100 * point.y,
            )
            for point in points
        ]
        return embedded(title, axes, values)


def _tens(shares: Sequence[float]) -> tuple[float, float]:
    """Axis limits in tens of percent around the shares, so that small differences do not look large."""
    low = max(0, 10 * math.floor(10 * (min(shares) - 0.02)))
    return low, min(100, max(10 * math.ceil(10 * (max(shares) + 0.02)), low + 10))


def _name_points(axes: Axes, points: Sequence[ScatterPoint]) -> None:
    """Write every name once, next to one of its points, where it covers nothing and cannot be confused with others."""
    style.name_ends({axes: ()})  # computes the layout
    places = [axes.transData.transform((100 * point.x, 100 * point.y)) for point in points]
    taken = [Bbox.from_bounds(x - 6, y - 6, 12, 12) for x, y in places]
    named: set[str] = set()
    for point, place in zip(points, places, strict=True):
        rivals = [where for other, where in zip(points, places, strict=True) if other.label != point.label]
        if point.label in named or any(math.dist(place, where) < 10 for where in rivals):
            continue
        for offset, side in (((9, 0), "left"), ((-9, 0), "right"), ((0, 11), "center")):
            text = axes.annotate(
                short(point.label, 24), (100 * point.x, 100 * point.y), offset,
                textcoords="offset points", ha=side, va="center",
            )  # fmt: skip
            text.set_in_layout(False)
            box = text.get_window_extent()
            if axes.bbox.x0 <= box.x0 and box.x1 <= axes.figure.bbox.x1 and not box.count_overlaps(taken):
                taken.append(box)
                named.add(point.label)
                break
            text.remove()
