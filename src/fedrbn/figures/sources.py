"""The sources of figures: the numbers of an experiment and its runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fedrbn.errors import FigureError, StorageError
from fedrbn.reproduce import declarations, experiment_cells, reading
from fedrbn.reproduce.experiment_cells import Threat
from fedrbn.reproduce.scales import SCALES
from fedrbn.reproduce.table import Number
from fedrbn.reproduce.table_file import TableFile, read_table
from fedrbn.runs.directory import RunDirectory

MOST_NAMED = 4
"""Maximum number of missing cells that are listed; of further ones only the count is given."""


PAPER_NAMES = {
    "fedrbn": "FedRBN",
    "fedrbn+": "FedRBN+",
    "fedrbn-noprop": "FedRBN without propagation",
    "fatbn": "FATBN",
    "fatavg": "FATAvg",
    "fatprox": "FATProx",
    "local-at": "Local AT",
}
"""Labels of methods in experiments, so that a method looks the same in every figure."""


@dataclass(frozen=True)
class Request:
    """What to draw a figure from."""

    table: Path = Path("table.json")
    """The file with the numbers of the figure's experiment, written by `fedrbn reproduce`."""
    store: Path = Path("runs")
    scale: str = "cpu"
    threat: Threat = "pixel"
    data: str | None = None
    """The data used in place of the paper's, if requested by name."""
    seeds: tuple[int, ...] | None = None
    """None uses all seeds of the table."""
    runs: tuple[Path, ...] = ()
    """Run directories, for figures that can be drawn from runs; empty uses those of the experiment."""

    def command(self, experiment: str, only: str = "") -> str:
        """The command that creates what this request needs from an experiment."""
        return experiment_cells.command(
            experiment,
            self.scale,
            self.seeds or (),
            threat=self.threat,
            data=self.data,
            only=only,
            out=self.table.parent.parent,
            store=self.store,
        )


class Results(TableFile):
    """The numbers of an experiment."""

    @property
    def parts(self) -> list[str]:
        """The tables of the experiment."""
        return list(dict.fromkeys(number.part for number in self.numbers))

    def part(self, name: str) -> Results:
        """One of the tables."""
        return self.model_copy(update={"numbers": tuple(number for number in self.numbers if number.part == name)})

    @property
    def rows(self) -> list[str]:
        """Labels of rows with measured or printed numbers."""
        return list(dict.fromkeys(n.row for n in self.numbers if n.mean is not None or n.paper is not None))

    @property
    def columns(self) -> list[str]:
        """Labels of columns."""
        return list(dict.fromkeys(number.column for number in self.numbers))

    @property
    def metrics(self) -> list[str]:
        """What was measured."""
        return list(dict.fromkeys(number.metric for number in self.numbers))

    def of(self, *, row: str, metric: str, column: str | None = None) -> list[Number]:
        """The numbers of a row, one for each column, or of one cell."""
        wanted = (n for n in self.numbers if n.row == row and n.metric == metric)
        return [number for number in wanted if column is None or number.column == column]

    def provenance(self, *remarks: str) -> str:
        """The source of the numbers and what is missing, for the footnote."""
        seeds = ", ".join(map(str, self.seeds))
        spread = f"mean ± standard deviation over seeds {seeds}" if len(self.seeds) > 1 else f"seed {seeds}"
        said = [f"{self.title}. Ours: scale {self.scale}, threat model {self.threat}, {spread}."]
        used = dict.fromkeys(data for part, data in self.stand_ins.items() if part in self.parts)
        said += [_stand_in(data) for data in used]
        return " ".join([*said, *remarks, *_left_out(self.numbers)])


def _stand_in(data: str) -> str:
    """The data used in place of the paper's, per domain."""
    declared, names = next((old, names) for (old, used), names in experiment_cells.STAND_INS.items() if used == data)
    pairs = ", ".join(f"{new} for {old}" for old, new in names.items())
    return f"Run on {data} in place of the paper's {declared} ({pairs})."


def _left_out(numbers: Sequence[Number]) -> list[str]:
    """What is not drawn: numbers that were not run, and separately those that diverged."""
    empty = [number for number in numbers if number.mean is None]
    groups = {
        "Not run and left out": [number for number in empty if not number.stopped],
        "Stopped before their last round and left out": [number for number in empty if number.stopped],
    }
    said = []
    for what, missing in groups.items():
        names = list(dict.fromkeys(" ".join((n.row, n.column)).strip() for n in missing))
        more = f" and {len(names) - MOST_NAMED} more" * (len(names) > MOST_NAMED)
        said += [f"{what}: {', '.join(names[:MOST_NAMED])}{more}."] if names else []
    return said


def results(request: Request, experiment: str) -> Results:
    """The numbers in the request's table, for the requested seeds."""
    if not request.table.is_file():
        raise FigureError(
            f"got no {request.table}; expected the numbers of {experiment}. Make them: {request.command(experiment)}"
        )
    try:
        content = read_table(request.table)
    except StorageError as error:
        raise FigureError(f"{error} Write it again: {request.command(experiment)}") from None
    numbers = tuple(_restricted(number, request) for number in content.numbers)
    found = Results(**{**dict(content), "seeds": _wanted(request, content.seeds), "numbers": numbers})
    if found.name != experiment or all(number.mean is None for number in found.numbers):
        raise FigureError(
            f"got {request.table} of {found.name} without our own numbers to draw; expected {experiment} with "
            f"finished runs. Make them: {request.command(experiment)}"
        )
    return found


def _wanted(request: Request, seeds: Iterable[int]) -> tuple[int, ...]:
    return tuple(seed for seed in seeds if request.seeds is None or seed in request.seeds)


def _restricted(number: Number, request: Request) -> Number:
    """A number restricted to the requested seeds."""
    seeds = {seed: number.seeds[seed] for seed in _wanted(request, number.seeds)}
    stopped = {seed: number.stopped[seed] for seed in _wanted(request, number.stopped)}
    return replace(number, seeds=seeds, stopped=stopped)


def cell_runs(request: Request, experiment: str, seeds: Sequence[int]) -> dict[tuple[str, str, str], list[Path]]:
    """For each (part, row, column) of an experiment, the directories of its runs with at least one finished round."""
    scale = SCALES[request.scale]
    cells = experiment_cells.cells(
        declarations.read(experiment), scale, seeds, threat=request.threat, data=request.data
    )
    found = {
        (cell.part, cell.row, cell.column): [reading.directory(run, request.store) for run in cell.runs]
        for cell in cells
    }
    return {key: [path for path in paths if (path / "rounds.jsonl").is_file()] for key, paths in found.items()}


def trained_run(request: Request, cell: str, experiment: str = "benchmark") -> Path:
    """The finished run of one cell of an experiment, PART/ROW/COLUMN, with the first requested seed."""
    seed = (request.seeds or (1,))[0]
    (chosen,) = experiment_cells.cells(
        declarations.read(experiment),
        SCALES[request.scale],
        [seed],
        threat=request.threat,
        data=request.data,
        only=cell,
    )
    path = reading.directory(chosen.runs[0], request.store)
    if reading.evaluation(path) is None:
        raise FigureError(
            f"got no finished run {path}; expected the run of {cell} in {experiment}. Create it: "
            f"{replace(request, seeds=(seed,)).command(experiment, cell)} – or give a run directory with --run."
        )
    return path


def run_names(paths: Sequence[Path]) -> dict[Path, str]:
    """Runs named by their method if the names differ, else by their directory."""
    methods = {path: RunDirectory.open(path).experiment().method.name for path in paths}
    if len(set(methods.values())) == len(paths):
        return {path: PAPER_NAMES.get(method, method) for path, method in methods.items()}
    return {path: path.resolve().name for path in paths}


def described(path: Path) -> str:
    """A description of a run from its config, for a footnote."""
    experiment = RunDirectory.open(path).experiment()
    method, data, train = experiment.method, experiment.data, experiment.train
    lam = f" (λ = {method.lam:g})" if method.lam is not None else ""
    return (
        f"{method.name}{lam} on {data.name}, width {experiment.model.width:g}, {train.rounds} rounds, "
        f"seed {experiment.run.seed}, threat model {experiment.attack.threat}"
    )
