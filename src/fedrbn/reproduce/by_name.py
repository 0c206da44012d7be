"""Reproduce an experiment of the paper by its name: complete its runs, fill its table, write both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fedrbn.config import ConfigError
from fedrbn.hardware import cores
from fedrbn.reproduce import declarations, earlier_table, experiment_cells, running, table, table_text
from fedrbn.reproduce.experiment_cells import Threat
from fedrbn.reproduce.running import TaskOutcome
from fedrbn.reproduce.scales import SCALES


@dataclass(frozen=True)
class Reproduced:
    """The filled table, the folder it was written to, and the outcome of every run."""

    table: table.Table
    folder: Path
    outcomes: tuple[TaskOutcome, ...]

    @property
    def failed(self) -> int:
        """The number of failed runs: their cells are empty or name the round."""
        return sum(outcome.error is not None for outcome in self.outcomes)

    def _repr_markdown_(self) -> str:
        return table_text.markdown(self.table)


def reproduce_experiment(
    name: str,
    *,
    scale: str = "cpu",
    seeds: Sequence[int] = (1,),
    threat: Threat = "pixel",
    data: str | None = None,
    only: str = "",
    out: Path | str = "results",
    store: Path | str = "runs",
    workers: int | None = None,
    run: bool = True,
    keep: bool = False,
    tell: Callable[[int, int, TaskOutcome], None] | None = None,
) -> Reproduced:
    """Run an experiment of the paper and write its table, as `fedrbn reproduce` does.

    Finished runs in the store are reused; `run=False` runs nothing and writes the table of the finished runs.
    `keep=True` keeps the numbers of the table in the folder whose runs are not in the store; `only` then limits what is
    run, not what is shown. Without such a table, it changes nothing. `tell` is called for every finished run with its
    number, the number of runs, and the outcome.
    """
    if scale not in SCALES:
        raise ConfigError(f"got scale {scale!r}; expected one of {', '.join(SCALES)}.")
    declaration, numbers, size = declarations.read(name), list(seeds), SCALES[scale]
    cells = experiment_cells.cells(declaration, size, numbers, threat=threat, data=data, only=only)
    folder = Path(out) / experiment_cells.folder_name(name, scale, threat, data)
    earlier = earlier_table.read_earlier(folder) if keep else None
    outcomes = []
    if run:
        experiment_cells.check_data(cells)
        todo = running.tasks(cells)
        for number, outcome in enumerate(running.complete(todo, Path(store), workers or cores(), size.subset), start=1):
            outcomes.append(outcome)
            if tell is not None:
                tell(number, len(todo), outcome)
    shown = only
    if earlier is not None:
        everything = experiment_cells.cells(declaration, size, numbers, threat=threat, data=data)
        cells, shown = earlier_table.cells_to_show(everything, cells, earlier), ""
    filled = table.fill(declaration, cells, Path(store), size, threat, numbers)
    if earlier is not None:
        filled = earlier_table.with_earlier(filled, earlier)
    command = experiment_cells.command(name, scale, filled.seeds, threat=threat, data=data, only=shown)
    filled = replace(filled, command=command)
    table_text.write(filled, folder)
    return Reproduced(filled, folder, tuple(outcomes))
