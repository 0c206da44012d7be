"""Reproduced tables, as far as the page shows them; a run's own lines are in fedrbn.evaluation.records."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Record(BaseModel):
    """What a file says; keys that the report does not show are left alone."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Number(Record):
    """One number of a reproduced table."""

    part: str
    row: str
    column: str
    metric: str
    seeds: dict[str, float]
    mean: float | None
    std: float | None
    paper: float | None
    paper_std: float | None = None


class Reproduced(Record):
    """A table.json of `fedrbn reproduce`."""

    name: str
    title: str
    place: str
    caption: str
    scale: str
    stand_ins: dict[str, str] = {}
    numbers: tuple[Number, ...]
