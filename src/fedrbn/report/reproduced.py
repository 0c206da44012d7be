"""A result of `fedrbn reproduce`: our numbers next to the paper's, and both over standard accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedrbn.report.charts import ScatterPoint, scatter
from fedrbn.report.content import Figure, PageTable
from fedrbn.reproduce.table import Number
from fedrbn.reproduce.table_file import TableFile
from fedrbn.reproduce.table_text import NOT_PERCENT, printed_number


@dataclass(frozen=True)
class PartView:
    """One part of the table: a grid, and a scatter plot for each column that has both RA and SA."""

    title: str
    table: PageTable
    figures: tuple[Figure, ...]


@dataclass(frozen=True)
class ResultView:
    """What the template shows for a reproduced table."""

    anchor: str
    title: str
    place: str
    caption: str
    parts: tuple[PartView, ...]


def view(result: TableFile, anchor: str) -> ResultView:
    """The sections of a reproduced table."""
    parts = []
    for part in dict.fromkeys(number.part for number in result.numbers):
        numbers = [number for number in result.numbers if number.part == part]
        stand_in = f" (run on {result.stand_ins[part]})" if part in result.stand_ins else ""
        parts.append(PartView(f"{part}{stand_in}", _grid(part, numbers), tuple(_trade_offs(numbers))))
    return ResultView(anchor, f"{result.title} (scale {result.scale})", result.place, result.caption, tuple(parts))


def _grid(part: str, numbers: Sequence[Number]) -> PageTable:
    heads = list(dict.fromkeys((number.column, number.metric) for number in numbers))
    printed = {(number.column, number.metric) for number in numbers if number.paper is not None}
    found = {(number.row, number.column, number.metric): number for number in numbers}
    names = [
        name for head in heads for name in (_unbroken(" ".join(head).strip()), "paper")[: 2 if head in printed else 1]
    ]
    rows = []
    for row in dict.fromkeys(number.row for number in numbers):
        shown = [row]
        for head in heads:
            number = found.get((row, *head))
            shown.append(_ours(number))
            if head in printed:
                shown.append("" if number is None else printed_number(number.paper, number.paper_std))
        rows.append(tuple(shown))
    return PageTable(f"{part}: our number and the paper's number", ("", *names), tuple(rows))


def _unbroken(name: str) -> str:
    """A heading with a non-breaking space before the percent sign."""
    return name.replace(" %", "\u00a0%")


def _ours(number: Number | None) -> str:
    """Our mean ± standard deviation over seeds; empty if it was not run."""
    if number is None or number.mean is None:
        return ""
    values = [number.mean] if number.std is None else [number.mean, number.std]
    digits = ".3g" if number.metric in NOT_PERCENT else ".1f"
    return " ± ".join(f"{value:{digits}}" for value in values)


def _trade_offs(numbers: Sequence[Number]) -> list[Figure]:
    figures = []
    for column in dict.fromkeys(number.column for number in numbers):
        found = {(number.row, number.metric): number for number in numbers if number.column == column}
        rows = list(dict.fromkeys(row for row, metric in found if metric in ("RA", "SA")))
        both = [(row, found[row, "SA"], found[row, "RA"]) for row in rows if {(row, "SA"), (row, "RA")} <= found.keys()]
        shown: list[ScatterPoint] = []
        cells = []
        for row, sa, ra in both:
            for who, x, y in (("ours", sa.mean, ra.mean), ("paper", sa.paper, ra.paper)):
                if x is not None and y is not None:
                    shown.append(ScatterPoint(row, x / 100, y / 100, hollow=who == "paper", detail=f", {who}"))
                    cells.append((row, who, f"{x:.1f}", f"{y:.1f}"))
        if shown:
            title = " ".join(["Robust over standard accuracy", f"({column})" if column else ""]).strip()
            data = PageTable(f"{title}, in %", ("row", "whose", "SA", "RA"), tuple(cells), text_columns=2)
            figures.append(Figure(title, scatter(title, shown, "SA", "RA"), data, "Filled: ours. Hollow: the paper's."))
    return figures
