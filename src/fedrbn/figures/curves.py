"""Validation over rounds, from the records of runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedrbn.errors import FigureError
from fedrbn.figures import style
from fedrbn.figures.sources import Request, Results, cell_runs, described, results, run_names
from fedrbn.figures.style import End, Mark
from fedrbn.runs import records
from fedrbn.runs.directory import RunDirectory


@dataclass(frozen=True)
class Curve:
    """A score in % after rounds: mean, lowest and highest over seeds."""

    rounds: tuple[int, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


def scores(path: Path) -> dict[int, float]:
    """The validation score in % after each validated round."""
    found = records.rounds(RunDirectory.open(path))
    validated = {record.round: record.validated("score") for record in found}
    return {number: 100 * score for number, score in validated.items() if score is not None}


def curve(paths: Sequence[Path]) -> Curve | None:
    """The curve of runs that differ only in their seed; rounds that not all of them have reached are left out."""
    found = [scores(path) for path in paths]
    rounds = sorted(set.intersection(*(set(own) for own in found))) if found else []
    if not rounds:
        return None
    at = [[own[number] for own in found] for number in rounds]
    return Curve(tuple(rounds), *(tuple(pick(values) for values in at) for pick in (fmean, min, max)))


def store_curves(request: Request, table: Results) -> dict[tuple[str, str], Curve]:
    """For each (row, column) of a table with one part, the curve of its runs, if they are in the store."""
    runs = cell_runs(request, table.name, table.seeds)
    found = {(row, column): curve(paths) for (_, row, column), paths in runs.items()}
    return {cell: own for cell, own in found.items() if own is not None}


def draw_curves(
    axes: Axes, curves: Mapping[str, Curve], marks: Mapping[str, Mark], linestyle: str = "-", symbols: int = 1
) -> list[End]:
    """Lines, each with a band from the lowest to the highest seed; returns their ends, which get the names.

    A line with few points has symbols: a line through a single point would be invisible.
    """
    ends = []
    for name, own in curves.items():
        colour = marks[name].colour
        marker = marks[name].marker if len(own.rounds) <= symbols else ""
        axes.plot(own.rounds, own.mean, color=colour, linestyle=linestyle, marker=marker)
        if own.low != own.high:
            axes.fill_between(own.rounds, own.low, own.high, color=colour, alpha=0.15, linewidth=0)
        ends.append(End(name, own.rounds[-1], own.mean[-1], colour))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    return ends


def convergence(request: Request) -> Figure:
    """The validation score over rounds, for the experiment's methods or for the given runs."""
    figure = style.page(style.COLUMN, 2.6)
    axes = figure.subplots()
    axes.set(xlabel="round", ylabel="validation in %")
    if request.runs:
        names = run_names(request.runs)
        named = {name: curve([path]) for path, name in names.items()}
        source = "; ".join(f"{name}: {described(path)}" for path, name in names.items()) + "."
    else:
        table = results(request, "convergence")
        named = {row: own for (row, _), own in store_curves(request, table).items()}
        source = table.provenance("Bands: lowest to highest seed." if len(table.seeds) > 1 else "")
    drawn = {name: own for name, own in named.items() if own is not None}
    if not drawn:
        remedy = "expected one that was validated" if request.runs else request.command("convergence")
        raise FigureError(f"got no validated round in {request.store if not request.runs else 'these runs'}: {remedy}")
    ends = draw_curves(axes, drawn, style.marks(list(drawn)))
    note = f"Validation: RA of AT users and SA of ST users, mean over users. {source}"
    return style.finish(figure, note, {axes: ends})
