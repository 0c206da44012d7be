"""Adds to a table the numbers of an earlier version of it, whose runs are no longer in the store.

The runs of a table at the paper's size take days and several machines; their store is too large to keep, their numbers
are not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fedrbn.reproduce.differences import Difference
from fedrbn.reproduce.experiment_cells import Cell
from fedrbn.reproduce.table import Number, Table
from fedrbn.reproduce.table_file import TableFile, read_table


def read_earlier(folder: Path) -> TableFile | None:
    """The table that `fedrbn reproduce` wrote into this folder before; None if it has not written one yet."""
    file = folder / "table.json"
    return read_table(file) if file.exists() else None


def cells_to_show(everything: Sequence[Cell], run: Sequence[Cell], earlier: TableFile) -> list[Cell]:
    """The cells that are run now and those of the earlier table, in the order of the declaration."""
    known = {(number.part, number.row, number.column) for number in earlier.numbers}
    known |= {(cell.part, cell.row, cell.column) for cell in run}
    return [cell for cell in everything if (cell.part, cell.row, cell.column) in known]


def with_earlier(table: Table, earlier: TableFile) -> Table:
    """The table with every seed that only the earlier one has, and with the versions that produced it."""
    known = {_place(number): number for number in earlier.numbers}
    numbers = tuple(_merged(number, known.get(_place(number))) for number in table.numbers)
    if numbers == table.numbers:  # all runs are in the store
        return table
    names = [*table.versions, *(name for name in earlier.versions if name not in table.versions)]
    return replace(
        table,
        numbers=numbers,
        seeds=tuple(sorted({*table.seeds, *earlier.seeds})),
        versions={name: sorted({*table.versions.get(name, ()), *earlier.versions.get(name, ())}) for name in names},
        differences=_differences(table, earlier),
    )


def _merged(number: Number, before: Number | None) -> Number:
    if before is None or before.data != number.data:
        return number
    seeds = before.seeds | number.seeds
    stopped = {seed: round_ for seed, round_ in (before.stopped | number.stopped).items() if seed not in seeds}
    return replace(number, seeds=dict(sorted(seeds.items())), stopped=stopped)


def _differences(table: Table, earlier: TableFile) -> tuple[Difference, ...]:
    """Differences need the answers of both rows: that with more seeds is shown, the newer one if they are equal."""
    found = {_place(one): one for one in earlier.differences}
    for one in table.differences:
        before = found.get(_place(one))
        if before is None or len(one.seeds) >= len(before.seeds):
            found[_place(one)] = one
    order = {_place(number): position for position, number in enumerate(table.numbers)}
    return tuple(sorted((one for place, one in found.items() if place in order), key=lambda one: order[_place(one)]))


def _place(found: Number | Difference) -> tuple[str, str, str, str]:
    return found.part, found.row, found.column, found.metric
