"""Run directories and `fedrbn reproduce` results as plain values. The content of files is checked, not trusted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from fedrbn.config import Experiment
from fedrbn.errors import StorageError
from fedrbn.evaluation.records import CheckRecord, EvaluationRecord, FailureRecord, RoundRecord, StopRecord
from fedrbn.runs.directory import RunDirectory
from fedrbn.runs.records import evaluations, rounds, stops
from fedrbn.types import Member, Tensors


@dataclass(frozen=True)
class Run:
    """The content of a run directory, except weights."""

    path: Path
    experiment: Experiment
    members: tuple[Member, ...]
    rounds: tuple[RoundRecord, ...]
    evaluations: tuple[EvaluationRecord, ...]
    """The first one is the final evaluation of the training; later ones were requested."""
    stops: tuple[StopRecord, ...]
    held: bool
    """Whether a process is working on it."""

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.path.resolve().name

    @property
    def ending(self) -> EvaluationRecord | None:
        """The final evaluation of the training; None if it is not finished."""
        return self.evaluations[0] if self.evaluations else None

    @property
    def checks(self) -> tuple[CheckRecord, ...]:
        """The newest check-list; empty if it was never measured."""
        return next((evaluation.checks for evaluation in reversed(self.evaluations) if evaluation.checks), ())

    @property
    def failures(self) -> tuple[FailureRecord, ...]:
        """The failures of all rounds, finished or not."""
        finished = [failure for record in self.rounds for failure in record.failures]
        return (*finished, *(failure for stop in self.stops for failure in stop.failures))

    def answers(self) -> dict[str, Tensors]:
        """Per-sample outcomes of the final evaluation: client → column → one boolean per sample."""
        return RunDirectory(self.path).answers(0)


@dataclass(frozen=True)
class Found:
    """What the given paths contain."""

    runs: tuple[Path, ...]
    results: tuple[Path, ...]


def find(paths: Iterable[Path]) -> Found:
    """The runs and reproduced tables among the paths; a folder that is neither may contain some."""
    runs: dict[Path, None] = {}
    results: dict[Path, None] = {}
    for path in paths:
        here = [path] if _is_known(path) else sorted(filter(_is_known, path.iterdir())) if path.is_dir() else []
        if not here:
            raise StorageError(
                f"got {path}, which contains no run and no reproduced table; expected a directory made by fedrbn run, "
                "compare or reproduce, or a folder of such directories."
            )
        for found in here:
            (runs if _is_run(found) else results)[found] = None
    if not runs and not results:
        raise StorageError("got no directory; expected at least one that fedrbn run, compare or reproduce made.")
    return Found(tuple(runs), tuple(results))


def _is_run(path: Path) -> bool:
    return (path / "config.toml").is_file()


def _is_known(path: Path) -> bool:
    return _is_run(path) or (path / "table.json").is_file()


def read_run(path: Path) -> Run:
    """Everything in a run directory except the weights; it may be unfinished."""
    directory = RunDirectory.open(path)
    described = directory.folder.exists("federation.json")
    return Run(
        path=path,
        experiment=directory.experiment(),
        members=directory.description()[0] if described else (),
        rounds=tuple(rounds(directory)),
        evaluations=tuple(evaluations(directory)),
        stops=tuple(stops(directory)),
        held=directory.held(),
    )
