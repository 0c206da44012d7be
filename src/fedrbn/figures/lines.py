"""Accuracy over a quantity: the share of AT users, λ, participants per round, the size of the data."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fedrbn.figures import style
from fedrbn.figures.curves import draw_curves, store_curves
from fedrbn.figures.sources import Request, Results, results
from fedrbn.figures.style import End, Mark
from fedrbn.reproduce.table import Number

Whose = Literal["ours", "paper"]


@dataclass(frozen=True)
class Point:
    """One number of a line, with its standard deviation over seeds; 0 for one seed."""

    x: float
    y: float
    std: float = 0.0


def leading_number(label: str) -> float:
    """The quantity in a label: 12 for "12 %", 5 for "5 of 50", 0.5 for "λ=0.5"."""
    return float(label.rpartition("=")[2].split()[0])


def points(numbers: Sequence[Number], labels: Sequence[str], whose: Whose = "ours") -> list[Point]:
    """The available numbers, each at the quantity of its label."""
    found = []
    for number, label in zip(numbers, labels, strict=True):
        y = number.mean if whose == "ours" else number.paper
        if y is not None:
            std = number.std if whose == "ours" else None
            found.append(Point(leading_number(label), y, std or 0.0))
    return found


def line(axes: Axes, found: Sequence[Point], mark: Mark, whose: Whose = "ours") -> None:
    """A line with markers and error bars. The paper's lines are hollow and dashed."""
    ours = whose == "ours"
    axes.errorbar(
        [p.x for p in found],
        [p.y for p in found],
        yerr=[p.std for p in found] if any(p.std for p in found) else None,
        color=mark.colour,
        marker=mark.marker,
        markerfacecolor=mark.colour if ours else "white",
        linestyle="-" if ours else (0, (3, 2)),
        elinewidth=0.7,
        capsize=1.5,
    )


def over_columns(axes: Axes, table: Results, metric: str, whose: Whose = "ours") -> list[End]:
    """One line per row of a table over the quantity of its columns; returns the lines' ends, which get the names."""
    marks, ends = style.marks(table.rows), []
    for row in table.rows:
        numbers = table.of(row=row, metric=metric)
        found = points(numbers, [number.column for number in numbers], whose)
        if found:
            line(axes, found, marks[row], whose)
            ends.append(End(row, found[-1].x, found[-1].y, marks[row].colour))
    axes.set_xticks([leading_number(column) for column in table.columns])
    return ends


def highlight(request: Request) -> Figure:
    """RA over the share of AT users: our numbers and the paper's side by side, on the same scale."""
    table = results(request, "highlight")
    figure = style.page(style.TEXT, 2.6)
    left, right = figure.subplots(1, 2, sharey=True)
    titles: dict[Whose, str] = {"ours": f"ours, scale {table.scale}", "paper": "paper, as printed"}
    ends = {}
    for axes, (whose, title) in zip((left, right), titles.items(), strict=True):
        axes.set(title=title, xlabel="AT users in %")
        ends[axes] = over_columns(axes, table, "RA", whose)
    left.set_ylabel("RA in %")
    return style.finish(figure, table.provenance("The paper prints numbers for three of the methods."), ends)


def participants(request: Request) -> Figure:
    """RA and SA over the users of a round, and FedRBN's validation score over rounds."""
    table = results(request, "participants")
    figure = style.page(style.TEXT, 2.5)
    panels = figure.subplots(1, 3)
    ends = {}
    for axes, metric in zip(panels[:2], ("RA", "SA"), strict=True):
        axes.set(xlabel="users per round", ylabel=f"{metric} in %")
        ends[axes] = over_columns(axes, table, metric)
    found = store_curves(request, table)
    own = {f"{leading_number(column):g} users": curve for (row, column), curve in found.items() if row == "FedRBN"}
    ends[panels[2]] = draw_curves(panels[2], own, dict(zip(own, _shades(len(own)), strict=True)))
    panels[2].set(title="FedRBN", xlabel="round", ylabel="validation in %")
    remarks = "Validation: RA of AT users and SA of ST users, mean over users."
    note = table.provenance(remarks if own else f"No validation curves: no runs in {request.store}.")
    return style.finish(figure, note, ends)


def _shades(count: int) -> list[Mark]:
    """Marks for this many ordered series of one kind: from light to dark."""
    shades = ("#5aaede", "#2f86c1", "#005f96", "#002f4d")
    return [Mark(shades[min(index, len(shades) - 1)], "") for index in range(count)]


def data_size(request: Request) -> Figure:
    """RA and SA over the share of training images, and over the share that is held out."""
    table = results(request, "data-size")
    figure = style.page(style.TEXT, 4.4)
    panels = figure.subplots(len(table.parts), 2, squeeze=False)
    ends = {}
    for row, name in zip(panels, table.parts, strict=True):
        for axes, metric in zip(row, ("RA", "SA"), strict=True):
            axes.set(xlabel=f"{name.split(', ')[-1]} in %", ylabel=f"{metric} in %")
            ends[axes] = over_columns(axes, table.part(name), metric)
    return style.finish(figure, table.provenance(), ends)


def trade_off(request: Request) -> Figure:
    """RA and SA over λ for each setting of AT users, with the paper's three numbers."""
    table = results(request, "trade-off")
    figure = style.page(style.TEXT, 2.8)
    looks = {"SA": Mark(style.VERMILION, "s"), "RA": Mark(style.BLUE, "o")}
    panels = figure.subplots(1, len(table.columns), sharey=True, squeeze=False)[0]
    ends: dict[Axes, list[End]] = {}
    for axes, column in zip(panels, table.columns, strict=True):
        ends[axes] = []
        for metric, mark in looks.items():
            numbers = [number for number in table.numbers if (number.column, number.metric) == (column, metric)]
            labels = [number.row for number in numbers]
            paper, ours = (points(numbers, labels, whose) for whose in ("paper", "ours"))
            line(axes, paper, mark, "paper")
            line(axes, ours, mark)
            ends[axes] += [End(metric, ours[-1].x, ours[-1].y, mark.colour)] if ours else []
        axes.set(title=f"AT users: {column}", xlabel="λ")
    panels[0].set_ylabel("accuracy in %")
    keys = [
        Line2D([], [], color=style.GREY, marker="o", label=f"ours, scale {table.scale}"),
        Line2D([], [], color=style.GREY, marker="o", markerfacecolor="white", linestyle=(0, (3, 2)),
               label="paper, as printed"),
    ]  # fmt: skip
    figure.legend(handles=keys, loc="outside upper right", ncols=2)
    return style.finish(figure, table.provenance(), ends)


def curve_of(row: str) -> str:
    """The trade-off curve that a row belongs to: its label without λ."""
    return re.sub(r" λ=[\d.]+", "", row)


def plus(request: Request) -> Figure:
    """RA over SA: FedRBN's trade-off curves for both branches, with λ next to each point, and FedRBN+."""
    table = results(request, "plus").part("Digits")
    figure = style.page(style.TEXT, 3.2)
    panels = figure.subplots(1, len(table.columns), sharey=True, squeeze=False)[0]
    curves = dict.fromkeys(curve_of(row) for row in table.rows)
    looks = {name: Mark(style.SERIES[i % len(style.SERIES)], "osDP*X"[i % 6]) for i, name in enumerate(curves)}
    for axes, column in zip(panels, table.columns, strict=True):
        for name, mark in looks.items():
            rows = [row for row in table.rows if curve_of(row) == name]
            sa, ra = ([table.of(row=row, metric=m, column=column)[0] for row in rows] for m in ("SA", "RA"))
            _trade(axes, list(zip(rows, sa, ra, strict=True)), mark)
        axes.set(title=f"AT users: {column}", xlabel="SA in %")
        axes.margins(0.12)
    panels[0].set_ylabel("RA in %")
    keys = [
        Line2D([], [], color=mark.colour, marker=mark.marker, linewidth=0.8, label=name) for name, mark in looks.items()
    ]
    figure.legend(handles=keys, loc="outside upper center", ncols=3)
    return style.finish(figure, table.provenance("Next to the points of curves: λ. Up and to the right is better."))


def _trade(axes: Axes, found: Sequence[tuple[str, Number, Number]], mark: Mark) -> None:
    """One curve of RA over SA, with the standard deviations over seeds in both directions."""
    there = [
        (row, Point(sa.mean, ra.mean), sa.std or 0.0, ra.std or 0.0)
        for row, sa, ra in found
        if sa.mean is not None and ra.mean is not None
    ]
    axes.errorbar(
        [point.x for _, point, _, _ in there],
        [point.y for _, point, _, _ in there],
        xerr=[std for _, _, std, _ in there],
        yerr=[std for _, _, _, std in there],
        color=mark.colour,
        marker=mark.marker,
        linewidth=0.8,
        elinewidth=0.6,
    )
    for row, point, _, _ in there:
        if len(there) > 1:
            weight = leading_number(row.partition(",")[0])
            place = (point.x, point.y)
            axes.annotate(f"{weight:g}", place, (4, 3), textcoords="offset points", color=mark.colour, fontsize=6.5)


def users(request: Request) -> Figure:
    """RA over SA for 25 to 200 users, with larger marks for more, and convergence with the fewest and most users."""
    table = results(request, "users")
    figure = style.page(style.TEXT, 2.8)
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.25))
    marks = style.marks(table.rows)
    for row in table.rows:
        pairs = zip(table.of(row=row, metric="SA"), table.of(row=row, metric="RA"), strict=True)
        found = [(sa, ra) for sa, ra in pairs if sa.mean is not None and ra.mean is not None]
        x, y = [sa.mean for sa, _ in found], [ra.mean for _, ra in found]
        sizes = [10 + leading_number(sa.column) for sa, _ in found]
        left.plot(x, y, color=marks[row].colour, linewidth=0.7)
        left.scatter(x, y, sizes, marks[row].colour, marker=marks[row].marker, alpha=0.7)
    left.set(xlabel="SA in %", ylabel="RA in %")
    left.set_title("larger marks: more users: " + ", ".join(f"{leading_number(c):g}" for c in table.columns))
    left.margins(0.15)
    left.legend(handles=[Line2D([], [], color=m.colour, marker=m.marker, label=row) for row, m in marks.items()])
    found_curves = store_curves(request, table)
    extremes = dict(zip((table.columns[0], table.columns[-1]), ("-", ":"), strict=True))
    ends: list[End] = []
    for column, look in extremes.items():
        own = {f"{row}, {leading_number(column):g}": c for (row, name), c in found_curves.items() if name == column}
        ends += draw_curves(right, own, {name: marks[name.rpartition(",")[0]] for name in own}, look)
    right.set(title="validation with fewest and with most users", xlabel="round", ylabel="validation in %")
    remark = "" if found_curves else f"No validation curves: no runs in {request.store}."
    return style.finish(figure, table.provenance(remark), {right: ends})
