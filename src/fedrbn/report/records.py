"""The lines of a run's files and of reproduced tables, as far as the page shows them."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class Record(BaseModel):
    """What a file says; keys that the report does not show are left alone."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Verdict(Record):
    """One line of the check-list of warning signs."""

    name: str
    passed: bool | None
    detail: str
    allowed: str = ""
    column: str = ""
    """The robust accuracy that it judges; empty: all of them."""


class Counts(Record):
    """Multiply-accumulates in the paper's count and as our code executes them."""

    paper: float
    actual: float


class Bytes(Record):
    """What travels from and to the server."""

    down: float
    up: float


class Bandwidth(Record):
    """Bytes of a round: for one client of each role, and for all of its participants."""

    client: dict[str, Bytes]
    round: Bytes


class Cost(Record):
    """What a run costs."""

    macs_per_epoch: Counts
    macs_total: Counts
    macs_per_image: dict[str, Counts]
    bytes_: Bandwidth = Field(alias="bytes")


class AttackFacts(Record):
    """An attack of an evaluation."""

    eps: float | None
    settings: str


class User(Record):
    """A client's accuracies by the names of the columns, and what it is."""

    model_config = ConfigDict(frozen=True, extra="allow")

    domain: str
    role: Literal["AT", "ST"]
    predicts: str

    def accuracy(self, column: str) -> float | None:
        """A column's value, if there is one."""
        value = (self.model_extra or {}).get(column)
        return float(value) if isinstance(value, int | float) else None


class Evaluation(Record):
    """A line of evaluations.jsonl."""

    method: str
    data: str
    seed: int
    threat: str
    attack: str
    attacks: dict[str, AttackFacts]
    deployment: str
    round: int
    labels: dict[str, str]
    samples_digest: str
    users: dict[str, User]
    domains: dict[str, dict[str, float]]
    mean: dict[str, float]
    interval: dict[str, tuple[float, float]]
    samples: dict[str, int]
    worst_domain: dict[str, float]
    versions: dict[str, str] = {}
    cost: Cost | None = None
    checks: tuple[Verdict, ...] = ()
    unanswered: dict[str, str] = {}
    """Clients that could not be evaluated, and why."""

    @property
    def eps(self) -> float | None:
        """Of the main attack, in pixels."""
        return self.attacks[self.attack].eps

    def domain_label(self, domain: str) -> str:
        """How tables name a domain."""
        return self.labels.get(domain, domain)


class FailureRecord(Record):
    """A client that did not finish a round, and why."""

    client: str
    round: int
    cause: str


class Stop(Record):
    """A line of stops.jsonl: a round that too few clients finished."""

    round: int
    failures: tuple[FailureRecord, ...] = ()


class RoundRecord(Record):
    """A line of rounds.jsonl."""

    round: int
    clients: dict[str, dict[str, float]]
    validation: dict[str, float | None] = {}
    seconds: float = 0.0
    failures: tuple[FailureRecord, ...] = ()
    warning: str = ""


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
