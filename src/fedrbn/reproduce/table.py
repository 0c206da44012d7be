"""The table of an experiment: our mean ± standard deviation over seeds, with the paper's number in its own column."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, stdev

from fedrbn.config import Experiment
from fedrbn.reproduce import reading
from fedrbn.reproduce.declarations import Declaration
from fedrbn.reproduce.differences import Difference, differences
from fedrbn.reproduce.experiment_cells import Cell
from fedrbn.reproduce.scales import Scale


@dataclass(frozen=True)
class Number:
    """One number of a table: the values of the finished seeds, and the paper's. No seed means that it was not run."""

    part: str
    row: str
    column: str
    metric: str
    data: str
    seeds: dict[int, float]
    paper: float | None
    stopped: dict[int, int] = field(default_factory=dict)
    """Seeds whose run could not continue, with the round: too few updates were valid, for example after divergence."""
    paper_std: float | None = None
    """The standard deviation that the paper prints with its number."""

    @property
    def mean(self) -> float | None:
        """Over seeds."""
        return fmean(self.seeds.values()) if self.seeds else None

    @property
    def std(self) -> float | None:
        """Over seeds; None for fewer than two."""
        return stdev(self.seeds.values()) if len(self.seeds) > 1 else None


@dataclass(frozen=True)
class Table:
    """An experiment's numbers and the facts for its caption."""

    declaration: Declaration
    numbers: tuple[Number, ...]
    stand_ins: dict[str, str]
    """Parts that ran on other data than the paper's, with the data used."""
    scale: Scale
    threat: str
    seeds: tuple[int, ...]
    versions: dict[str, list[str]]
    differences: tuple[Difference, ...] = ()
    """Rows compared with one of them, sample by sample."""
    command: str = ""
    """The command that makes the table again."""


def fill(
    declaration: Declaration, cells: Sequence[Cell], store: Path, scale: Scale, threat: str, seeds: Sequence[int]
) -> Table:
    """The table filled from the store; numbers of unfinished runs stay empty."""
    numbers = [
        Number(
            part=cell.part,
            row=cell.row,
            column=cell.column,
            metric=metric,
            data=cell.data,
            seeds=_by_seed(cell, text, store),
            paper=paper,
            stopped=_stops(cell, store),
            paper_std=paper_std,
        )
        for cell in cells
        for metric, text, paper, paper_std in zip(
            declaration.metrics, cell.read, cell.paper, cell.paper_std, strict=True
        )
    ]
    return Table(
        declaration=declaration,
        numbers=tuple(numbers),
        stand_ins={cell.part: cell.data for cell in cells if cell.data != cell.declared},
        scale=scale,
        threat=threat,
        seeds=tuple(seeds),
        versions=_versions((run for cell in cells for run in cell.runs), store),
        differences=tuple(differences(declaration, cells, store)),
    )


def _by_seed(cell: Cell, text: str, store: Path) -> dict[int, float]:
    found = {run.run.seed: reading.value(path, text, cell.attacks) for run, path in _readable(cell.runs, store)}
    return {seed: value for seed, value in found.items() if value is not None}


def _stops(cell: Cell, store: Path) -> dict[int, int]:
    found = {run.run.seed: reading.stopped(path) for run, path in _readable(cell.runs, store)}
    return {seed: number for seed, number in found.items() if number is not None}


def _readable(runs: Iterable[Experiment], store: Path) -> list[tuple[Experiment, Path]]:
    return [(run, path) for run in runs if (path := reading.readable(run, store)) is not None]


def _versions(runs: Iterable[Experiment], store: Path) -> dict[str, list[str]]:
    """All versions of each package that produced the numbers."""
    found: dict[str, set[str]] = {}
    for path in {path for _, path in _readable(runs, store)}:
        record = reading.evaluation(path)
        for name, version in (record.versions if record else {}).items():
            found.setdefault(name, set()).add(version)
    return {name: sorted(versions) for name, versions in found.items()}
