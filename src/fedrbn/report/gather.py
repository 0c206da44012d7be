"""Run directories and `fedrbn reproduce` results as plain values. What a file says is checked, not trusted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from fedrbn.config import Experiment
from fedrbn.errors import StorageError
from fedrbn.report.records import Evaluation, FailureRecord, Record, Reproduced, RoundRecord, Stop, Verdict
from fedrbn.runs.directory import RunDirectory
from fedrbn.types import Member, Tensors


@dataclass(frozen=True)
class Run:
    """What a run directory holds, apart from weights."""

    path: Path
    experiment: Experiment
    members: tuple[Member, ...]
    rounds: tuple[RoundRecord, ...]
    evaluations: tuple[Evaluation, ...]
    """The first one ended the training; later ones were asked for."""
    stops: tuple[Stop, ...]
    held: bool
    """Whether a process is working on it."""

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.path.resolve().name

    @property
    def ending(self) -> Evaluation | None:
        """The evaluation that ended the training; None if it is not finished."""
        return self.evaluations[0] if self.evaluations else None

    @property
    def checks(self) -> tuple[Verdict, ...]:
        """The newest check-list; empty if it was never measured."""
        return next((evaluation.checks for evaluation in reversed(self.evaluations) if evaluation.checks), ())

    @property
    def failures(self) -> tuple[FailureRecord, ...]:
        """Of all rounds, finished or not."""
        finished = [failure for record in self.rounds for failure in record.failures]
        return (*finished, *(failure for stop in self.stops for failure in stop.failures))

    def answers(self) -> dict[str, Tensors]:
        """Per-sample outcomes of the evaluation that ended the training: client → column → one boolean per sample."""
        return RunDirectory(self.path).answers(0)


@dataclass(frozen=True)
class Found:
    """What the given paths hold."""

    runs: tuple[Path, ...]
    results: tuple[Path, ...]


def find(paths: Iterable[Path]) -> Found:
    """The runs and reproduced tables among the paths; a folder that is neither may hold some."""
    runs: dict[Path, None] = {}
    results: dict[Path, None] = {}
    for path in paths:
        here = [path] if _is_known(path) else sorted(filter(_is_known, path.iterdir())) if path.is_dir() else []
        if not here:
            raise StorageError(
                f"got {path}, which holds no run and no reproduced table; expected a directory made by fedrbn run, "
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
    """Everything in a run directory but the weights; it may be unfinished."""
    directory = RunDirectory.open(path)
    described = directory.folder.exists("federation.json")
    return Run(
        path=path,
        experiment=directory.experiment(),
        members=directory.description()[0] if described else (),
        rounds=_lines(RoundRecord, directory, "rounds.jsonl"),
        evaluations=_lines(Evaluation, directory, "evaluations.jsonl"),
        stops=_lines(Stop, directory, "stops.jsonl"),
        held=directory.held(),
    )


def read_result(path: Path) -> Reproduced:
    """The table of a folder that `fedrbn reproduce` wrote."""
    file = path / "table.json"
    try:
        return Reproduced.model_validate_json(file.read_bytes())
    except (OSError, ValidationError) as error:
        raise _unreadable(file, error, "a table of fedrbn reproduce") from None


_R = TypeVar("_R", bound=Record)


def _lines(kind: type[_R], directory: RunDirectory, name: str) -> tuple[_R, ...]:
    return tuple(_checked(kind, line, directory.path / name) for line in directory.records(name))


def _checked(kind: type[_R], line: dict[str, Any], file: Path) -> _R:
    try:
        found = kind.model_validate(line)
    except ValidationError as error:
        raise _unreadable(file, error, "what fedrbn run wrote") from None
    if isinstance(found, Evaluation) and found.attack not in found.attacks:
        raise _unreadable(file, ValueError(f"attack {found.attack!r} is not described"), "what fedrbn run wrote")
    return found


def _unreadable(file: Path, error: Exception, expected: str) -> StorageError:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        reason = f"{place}: {first['msg']}"
    else:
        reason = str(error)
    return StorageError(
        f"got {file}, which cannot be shown ({reason}); expected {expected}. It is damaged or from another version: "
        "leave that directory out, or make it anew."
    )


def mean_loss(record: RoundRecord, members: Sequence[str]) -> float | None:
    """The mean training loss of those of the members that took part in a round."""
    losses = [
        record.clients[member]["loss"]
        for member in members
        if member in record.clients and "loss" in record.clients[member]
    ]
    return sum(losses) / len(losses) if losses else None
