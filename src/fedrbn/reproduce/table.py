"""The table of an experiment: our mean ± standard deviation over seeds, with the paper's number in its own column."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from fedrbn.config import Experiment
from fedrbn.files import write_atomically
from fedrbn.reproduce import reading
from fedrbn.reproduce.declarations import Declaration
from fedrbn.reproduce.differences import Difference, differences
from fedrbn.reproduce.experiment_cells import STAND_INS, Cell
from fedrbn.reproduce.scales import Scale

NOT_PERCENT = ("T", "similarity", "divergence", "mean shift", "lowest domain", "highest domain", "variance shift")
"""Metrics that are not accuracies: they are shown with three significant digits."""

SMALLEST = 0.001
"""Smaller probabilities are shown as less than this."""


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


def write(table: Table, folder: Path) -> None:
    """Write table.md, table.csv and table.json."""
    folder.mkdir(parents=True, exist_ok=True)
    contents = {
        "table.md": markdown(table),
        "table.csv": as_csv(table),
        "table.json": json.dumps(values(table), indent=1, ensure_ascii=False) + "\n",
    }
    for name, content in contents.items():
        write_atomically(folder / name, content.encode())


def caption(table: Table) -> str:
    """Scale, threat model, seeds, versions, and the meaning of the numbers."""
    versions = ", ".join(f"{name} {' and '.join(found)}" for name, found in table.versions.items()) or "nothing has run"
    ours = f"one seed ({table.seeds[0]})"
    if len(table.seeds) > 1:
        ours = (
            f"mean ± standard deviation over the seeds {', '.join(map(str, table.seeds))}, in brackets how many of "
            "them where not all are finished (table.json says which)"
        )
    threat, attack = f"Threat model: {table.threat}", "PGD with ε = 8/255"
    if table.threat != "pixel":
        threat += " (the released code's arithmetic; says nothing about robustness in pixel space)"
        attack = "the released code's PGD, nominally with ε = 8/255,"
    return " ".join(
        [
            f"Scale {table.scale.name}: {table.scale.about}.",
            f"{threat}.",
            f"Ours: {ours}; “paper” is the number printed there. Empty: not run, or not in the paper.",
            *_about_stops(table),
            f"Accuracies in %, RA under {attack} on the branch that predicts. Versions: {versions}.",
            *_about_data(table),
        ]
    )


def _about_stops(table: Table) -> list[str]:
    if not any(number.stopped for number in table.numbers):
        return []
    return ["Stopped: from that round on, too few updates were finite and small enough to be averaged."]


def _about_data(table: Table) -> list[str]:
    """Where the images are not the paper's, and which domain replaces which."""
    said = [
        f"{part}: run on {data} in place of {declared} "
        f"({', '.join(f'{new} for {old}' for old, new in names.items())}): the paper's numbers are of other images."
        for part, data in table.stand_ins.items()
        for (declared, stand_in), names in STAND_INS.items()
        if stand_in == data
    ]
    if any(number.data == "digits" for number in table.numbers):
        said.append("SynthDigits is regenerated by its published recipe.")
    return said


def markdown(table: Table) -> str:
    """The table as a page; one Markdown table for each part."""
    declaration = table.declaration
    lines = [f"# {declaration.title}", "", f"{declaration.place}. {declaration.note}".strip(), ""]
    for part in dict.fromkeys(number.part for number in table.numbers):
        numbers = [number for number in table.numbers if number.part == part]
        on = f" (run on {table.stand_ins[part]})" if part in table.stand_ins else ""
        lines += [f"## {part}{on}", "", *_grid(numbers, len(table.seeds)), ""]
        lines += _compared([difference for difference in table.differences if difference.part == part])
    made = [f"Made by `{table.command}`.", ""] if table.command else []
    return "\n".join([*lines, *made, caption(table)]) + "\n"


def _grid(numbers: Sequence[Number], wanted: int) -> list[str]:
    heads = list(dict.fromkeys((number.column, number.metric) for number in numbers))
    printed = {head for head in heads for n in numbers if (n.column, n.metric) == head and n.paper is not None}
    header = [
        "",
        *(text for head in heads for text in (" ".join(head).strip(), "paper")[: 2 if head in printed else 1]),
    ]
    lines = ["| " + " | ".join(header) + " |", "|" + "|".join(["---", *["---:"] * (len(header) - 1)]) + "|"]
    for row in dict.fromkeys(number.row for number in numbers):
        found = {(n.column, n.metric): n for n in numbers if n.row == row}
        shown = [row]
        for head in heads:
            number = found.get(head)
            shown.append("" if number is None else shown_mean(number, wanted))
            if head in printed:
                shown.append("" if number is None else printed_number(number.paper, number.paper_std))
        lines.append("| " + " | ".join(shown) + " |")
    return lines


def _compared(found: Sequence[Difference]) -> list[str]:
    """The differences of a part as a separate table; empty if there are none."""
    if not found:
        return []
    lines = [
        f"Compared with {found[0].against}, in points, on the same test images with the same seeds. In brackets: the "
        "number of seeds, and p of McNemar's exact test over their images. The test covers variation between test "
        "images, not between training runs, and is not corrected for several comparisons.",
        "",
    ]
    return [*lines, *difference_grid(found), ""]


def difference_grid(found: Sequence[Difference]) -> list[str]:
    """The lines of a Markdown table of differences: how many seeds and p in brackets."""
    heads = list(dict.fromkeys((one.column, one.metric) for one in found))
    lines = ["| " + " | ".join(["", *(" ".join(head).strip() for head in heads)]) + " |"]
    lines += ["|" + "|".join(["---", *["---:"] * len(heads)]) + "|"]
    for row in dict.fromkeys(one.row for one in found):
        own = {(one.column, one.metric): one for one in found if one.row == row}
        lines.append("| " + " | ".join([row, *(_shown_difference(own.get(head)) for head in heads)]) + " |")
    return lines


def _shown_difference(one: Difference | None) -> str:
    if one is None:
        return ""
    spread = "" if one.std is None else f" ± {one.std:.1f}"
    p = f"p = {one.p:.2g}" if one.p >= SMALLEST else f"p < {SMALLEST:g}"
    return f"{one.mean:+.1f}{spread} ({len(one.seeds)}; {p})"


def shown_mean(number: Number, wanted: int = 1) -> str:
    """Our number as text, with its number of seeds if more were requested; empty if it was not run.

    A run that could not continue is never hidden: the round in which it stopped is shown.
    """
    stops = [f"stopped in round {found}" for found in number.stopped.values()]
    if number.mean is None:
        return ", ".join(stops)
    percent = number.metric not in NOT_PERCENT
    spread = number.std if percent else number.std or None  # costs are the same for every seed
    shown = [value for value in (number.mean, spread) if value is not None]
    means = " ± ".join(f"{value:.1f}" if percent else f"{value:.3g}" for value in shown)
    fewer = [str(len(number.seeds))] if percent and len(number.seeds) < wanted else []
    return f"{means} ({'; '.join([*fewer, *stops])})" if fewer or stops else means


def printed_number(value: float | None, std: float | None = None) -> str:
    """The paper's number as it is printed there, one decimal or, for large costs, none; ± the deviation it prints.

    Empty if the paper has none.
    """
    return " ± ".join(f"{one:.1f}" if one < 200 else f"{one:.0f}" for one in (value, std) if one is not None)


def as_csv(table: Table) -> str:
    """One line for each number, after the same facts as in the caption."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    facts = ["scale", "threat", "seeds_wanted", "versions"]
    writer.writerow(["part", "row", "column", "metric", "data", "mean", "std", "seeds", "paper", "paper_std", *facts])
    versions = ";".join(f"{name}={'+'.join(found)}" for name, found in table.versions.items())
    wanted = ";".join(str(seed) for seed in table.seeds)
    for n in table.numbers:
        own = [n.part, n.row, n.column, n.metric, n.data, n.mean, n.std, ";".join(map(str, n.seeds))]
        writer.writerow([*own, n.paper, n.paper_std, table.scale.name, table.threat, wanted, versions])
    return text.getvalue()


def values(table: Table) -> dict[str, Any]:
    """The table as JSON values."""
    return {
        "name": table.declaration.name,
        "title": table.declaration.title,
        "place": table.declaration.place,
        "command": table.command,
        "caption": caption(table),
        "scale": table.scale.name,
        "threat": table.threat,
        "seeds": list(table.seeds),
        "versions": table.versions,
        "stand_ins": table.stand_ins,
        "numbers": [_with_mean(number) for number in table.numbers],
        "differences": [_with_mean(difference) for difference in table.differences],
    }


def _with_mean(found: Number | Difference) -> dict[str, Any]:
    return {**asdict(found), "mean": found.mean, "std": found.std}
