"""The lines of a run's files, checked: whoever reads numbers from a run finds them where they belong, or an error."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError

from fedrbn.errors import StorageError
from fedrbn.runs.directory import RunDirectory


class _Attack(BaseModel):
    eps: float | None
    settings: str


class _Evaluation(BaseModel):
    """What tables, exports and comparisons need of a line of evaluations.jsonl; there is more in it."""

    method: str
    data: str
    seed: int
    threat: str
    attack: str
    attacks: dict[str, _Attack]
    deployment: str
    part: str
    labels: dict[str, str]
    samples_digest: str
    users: dict[str, dict[str, float | str]]
    domains: dict[str, dict[str, float]]
    mean: dict[str, float]
    interval: dict[str, Annotated[list[float], Field(min_length=2, max_length=2)]]
    samples: dict[str, int]
    worst_domain: dict[str, float]


class _Round(BaseModel):
    """What a line of rounds.jsonl has at least."""

    round: int
    clients: dict[str, dict[str, float]]
    validation: dict[str, float | None] | None = None


def evaluations(directory: RunDirectory) -> list[dict[str, Any]]:
    """The evaluations of a run, oldest first; empty if there is none yet."""
    name = "evaluations.jsonl"
    found = _checked(directory, name, _Evaluation)
    for record in found:
        if record["attack"] not in record["attacks"]:
            raise _damaged(directory, name, f"attack {record['attack']!r} is not among its attacks")
        lost = record["mean"].keys() - (record["interval"].keys() & record["samples"].keys())
        if lost:
            raise _damaged(directory, name, f"column {min(lost)!r} has no interval or no count of samples")
    return found


def rounds(directory: RunDirectory) -> list[dict[str, Any]]:
    """The finished rounds of a run."""
    return _checked(directory, "rounds.jsonl", _Round)


def _checked(directory: RunDirectory, name: str, model: type[BaseModel]) -> list[dict[str, Any]]:
    found = directory.records(name)
    for number, record in enumerate(found, start=1):
        try:
            model.model_validate(record, strict=True)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(str(part) for part in first["loc"])
            raise _damaged(directory, name, f"line {number}: {place}: {first['msg']}") from None
    return found


def _damaged(directory: RunDirectory, name: str, why: str) -> StorageError:
    return StorageError(
        f"got {directory.path / name} with a record that cannot be used ({why}); expected what fedrbn run wrote. The "
        "file is damaged: put a copy back, or train again with --force."
    )
