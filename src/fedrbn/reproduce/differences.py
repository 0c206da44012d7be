"""Compares rows of a table with one of them, sample by sample: same test images, same seeds, different method."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import TypeAlias

from fedrbn.evaluation.significance import compare
from fedrbn.reproduce import reading
from fedrbn.reproduce.declarations import Declaration
from fedrbn.reproduce.experiment_cells import Cell
from fedrbn.runs.directory import RunDirectory
from fedrbn.types import Tensors

ClientAnswers: TypeAlias = dict[str, Tensors]
"""For each client, whether each test sample was classified correctly, under a column's name."""


@dataclass(frozen=True)
class Difference:
    """The difference of one row from another in points, in one column and metric."""

    part: str
    column: str
    metric: str
    row: str
    against: str
    seeds: dict[int, float]
    """The difference in percentage points for each seed that both have."""
    samples: int
    only_row: int
    """Test samples, over all seeds, that only this row classifies correctly."""
    only_against: int
    p: float
    """McNemar's exact test over the samples of all seeds."""

    @property
    def mean(self) -> float:
        """Over seeds."""
        return fmean(self.seeds.values())

    @property
    def std(self) -> float | None:
        """Over seeds; None for fewer than two."""
        return stdev(self.seeds.values()) if len(self.seeds) > 1 else None


def differences(declaration: Declaration, cells: Sequence[Cell], store: Path) -> list[Difference]:
    """Every row of each part compared with the row that the part names, if both ran on the same images."""
    named = {part.label: part.against for part in declaration.parts}
    bases = {(cell.part, cell.column): cell for cell in cells if cell.row == named[cell.part]}
    found = []
    for cell in cells:
        base = bases.get((cell.part, cell.column))
        if base is not None and base.row != cell.row:
            read = zip(declaration.metrics, cell.read, base.read, strict=True)
            found += [_difference(cell, base, metric, text, other, store) for metric, text, other in read]
    return [difference for difference in found if difference is not None]


def _difference(cell: Cell, base: Cell, metric: str, text: str, other: str, store: Path) -> Difference | None:
    """None if there is nothing to compare: not run, one run under two names, or not an accuracy."""
    ours: dict[str, Tensors] = {}
    theirs: dict[str, Tensors] = {}
    seeds: dict[int, float] = {}
    for run, rival in zip(cell.runs, base.runs, strict=True):
        path, against = reading.readable(run, store), reading.readable(rival, store)
        pair = _pair((path, text), (against, other)) if path and against else None
        if pair is None:
            continue
        (outcome,) = compare(*pair)
        seeds[run.run.seed] = 100 * (outcome.ours - outcome.theirs)
        for whole, part in zip((ours, theirs), pair, strict=True):
            whole.update({f"{run.run.seed}/{client}": answers for client, answers in part.items()})
    if not seeds:
        return None
    (outcome,) = compare(ours, theirs)
    counts = outcome.samples, outcome.only_ours, outcome.only_theirs
    return Difference(cell.part, cell.column, metric, cell.row, base.row, seeds, *counts, outcome.p)


def _pair(ours: tuple[Path, str], theirs: tuple[Path, str]) -> tuple[ClientAnswers, ClientAnswers] | None:
    """The answers of two runs, each from one column, if both are about the same images under the same attack."""
    here, there = reading.evaluation(ours[0]), reading.evaluation(theirs[0])
    if ours == theirs or here is None or there is None:
        return None
    if (here.samples_digest, here.attack, here.attacks) != (there.samples_digest, there.attack, there.attacks):
        return None
    first, second = (_answers(*side, here.attack) for side in (ours, theirs))
    return (first, second) if first and second else None


def _answers(path: Path, text: str, attack: str) -> ClientAnswers:
    """The answers behind a number of the final evaluation; empty if the number is not one of its accuracies."""
    column = text.replace("ra", f"ra[{attack}]", 1) if text.startswith("ra") else text
    found = RunDirectory(path).answers(0)
    return {client: {"": answers[column]} for client, answers in found.items() if column in answers}
