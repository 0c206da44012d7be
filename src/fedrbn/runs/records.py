"""Read the records of a run's files with validation: a malformed record is an error."""

from __future__ import annotations

from typing import Literal, TypeVar

from pydantic import ValidationError

from fedrbn.errors import StorageError
from fedrbn.evaluation.records import EvaluationRecord, Line, RoundRecord, StopRecord
from fedrbn.runs.directory import RunDirectory

_L = TypeVar("_L", bound=Line)


def rounds(directory: RunDirectory) -> list[RoundRecord]:
    """The finished rounds of a run."""
    return _checked(directory, "rounds.jsonl", RoundRecord)


def stops(directory: RunDirectory) -> list[StopRecord]:
    """The rounds that too few clients finished."""
    return _checked(directory, "stops.jsonl", StopRecord)


def evaluations(directory: RunDirectory) -> list[EvaluationRecord]:
    """The evaluations of a run, oldest first; empty if there is none yet."""
    return _checked(directory, "evaluations.jsonl", EvaluationRecord)


def trained_in(directory: RunDirectory) -> Literal["bfloat16", "float32"] | None:
    """The precision of a run's rounds according to its records; None if they do not say."""
    said = [record.precision for record in rounds(directory) if record.precision]
    return None if not said else "bfloat16" if said[-1] == "bfloat16" else "float32"


def _checked(directory: RunDirectory, name: str, kind: type[_L]) -> list[_L]:
    found = []
    for number, line in enumerate(directory.records(name), start=1):
        try:
            found.append(kind.from_json(line))
        except ValidationError as error:
            raise _damaged(directory, name, number, error) from None
    return found


def _damaged(directory: RunDirectory, name: str, number: int, error: ValidationError) -> StorageError:
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"])
    why = ": ".join(part for part in (f"line {number}", place, first["msg"].removeprefix("Value error, ")) if part)
    return StorageError(
        f"got {directory.path / name} with a record that cannot be used ({why}); expected a record of fedrbn run. The "
        "file is damaged: restore a copy, train again with --force, or leave that directory out."
    )
