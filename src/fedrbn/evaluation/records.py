"""The lines that a run writes: a finished round, a round that too few clients finished, an evaluation.

All code reads and writes them with these types. On disk a line is a JSON object (`to_json`, `from_json`). Unknown keys
are kept, so lines of older and newer versions load and are written back unchanged; the keys of the types are validated
strictly.

    rounds.jsonl        RoundRecord
    stops.jsonl         StopRecord
    evaluations.jsonl   EvaluationRecord
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from statistics import fmean
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SerializeAsAny,
    Strict,
    WrapValidator,
    model_validator,
)

from fedrbn.evaluation import notebook


def _as_written(value: Any, check: Callable[[Any], float]) -> Any:
    """The value itself, after checking that it is a number: 3 stays 3 and is not written back as 3.0."""
    check(value)
    return value


JsonNumber: TypeAlias = Annotated[float, WrapValidator(_as_written), SerializeAsAny()]


def _share(value: float) -> float:
    if not 0 <= value <= 1 or math.copysign(1, value) < 0:
        raise ValueError(f"got {value}; expected a share between 0 and 1")
    return value


def _length(value: float) -> float:
    if not 0 <= value < math.inf:
        raise ValueError(f"got {value}; expected a finite number of at least 0")
    return value


def _ordered(bounds: tuple[float, float]) -> tuple[float, float]:
    if bounds[0] > bounds[1]:
        raise ValueError(f"got an interval from {bounds[0]} to {bounds[1]}; expected the lower bound first")
    return bounds


AccuracyValue: TypeAlias = Annotated[JsonNumber, AfterValidator(_share)]
"""An accuracy: NaN or 57 in a record would be printed as if it had been measured."""
NonNegative: TypeAlias = Annotated[JsonNumber, AfterValidator(_length)]
"""A number of seconds, a learning rate or an ε."""
Interval: TypeAlias = Annotated[tuple[AccuracyValue, AccuracyValue], Strict(False), AfterValidator(_ordered)]
RecordedCount: TypeAlias = Annotated[int, Field(ge=0, le=2**53)]
"""A number of rounds or samples; larger ones cannot be drawn."""
_COLUMN = re.compile(r"[sr]a([ @\[].*)?", re.DOTALL)
"""The names of accuracies, see `fedrbn.evaluation.summary`."""


class Line(BaseModel):
    """A JSON object of a run's files; unknown keys are kept."""

    model_config = ConfigDict(
        frozen=True, strict=True, extra="allow", validate_by_name=True, ser_json_inf_nan="constants"
    )

    @classmethod
    def from_json(cls, line: Mapping[str, Any]) -> Self:
        """The validated record of a line."""
        return cls.model_validate(line)

    def to_json(self) -> dict[str, Any]:
        """The line as it was read or created, without additions or losses."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)

    def _repr_html_(self) -> str:
        return notebook.mapping(type(self).__name__, self.to_json())


class FailureRecord(Line):
    """A client that did not finish a round, and why; rounds count from 1."""

    client: str
    round: RecordedCount
    cause: str


Failures: TypeAlias = Annotated[tuple[FailureRecord, ...], Strict(False)]


class StopRecord(Line):
    """A round that too few clients finished."""

    round: RecordedCount
    failures: Failures = ()


class Origin(Line):
    """What every record says about its run."""

    key: str = ""
    method: str = ""
    data: str = ""
    attack: str = ""
    """The label of the main attack, the one of `ra`."""
    eps: NonNegative | None = None
    """ε of the attack in the config, in pixels."""
    threat: str = ""
    predict: str = ""
    seed: int = 0
    precision: str = ""
    versions: dict[str, str] = {}


class RoundRecord(Origin):
    """A finished round."""

    round: RecordedCount
    """Rounds count from 1."""
    lr: NonNegative | None = None
    clients: dict[str, dict[str, JsonNumber]]
    """The measurements of each client whose update was used: loss, seconds …"""
    failures: Failures = ()
    warning: str = ""
    """A warning that training diverges, and where."""
    duties: dict[str, dict[str, JsonNumber | None]] | None = None
    """The duty of each client, if duties can change from round to round."""
    validation: dict[str, AccuracyValue | None] | None = None
    """See `validated`; None if this round was not validated."""
    seconds: NonNegative = 0.0

    @property
    def losses(self) -> dict[str, float]:
        """The training loss of each client that reported one."""
        return {client: metrics["loss"] for client, metrics in self.clients.items() if "loss" in metrics}

    def mean_loss(self, clients: Iterable[str]) -> float | None:
        """The mean loss of those of these clients that took part; None if none did."""
        losses = self.losses
        found = [losses[client] for client in clients if client in losses]
        return fmean(found) if found else None

    @property
    def loss(self) -> float | None:
        """The mean loss of all clients that took part."""
        return self.mean_loss(self.clients)

    @property
    def failed(self) -> int:
        """Clients that failed."""
        return len({failure.client for failure in self.failures})

    @property
    def ra_at(self) -> float | None:
        """RA of AT users on validation data."""
        return self.validated("ra_at")

    @property
    def sa_st(self) -> float | None:
        """SA of ST users on validation data."""
        return self.validated("sa_st")

    def validated(self, part: str) -> float | None:
        """`score`, which chooses the round, or its parts `ra_at` and `sa_st`; None if it was not measured."""
        return (self.validation or {}).get(part)


class AttackRecord(Line):
    """An attack of an evaluation."""

    eps: NonNegative | None
    settings: str
    in_config: bool = False
    """Whether it is the attack of the run's config."""


class UserRecord(Line):
    """A client's properties, and its accuracies by the names of the columns."""

    __pydantic_extra__: dict[str, int | float | str]

    domain: str
    role: Literal["AT", "ST"]
    predicts: str
    """The branch that predicts, or the name of another deployment."""

    @model_validator(mode="after")
    def _shares(self) -> Self:
        for name, value in self.__pydantic_extra__.items():
            if _COLUMN.fullmatch(name) and not isinstance(value, str):
                _share(value)
        return self

    def accuracy(self, column: str) -> float | None:
        """A column's value, if there is one."""
        value = self.__pydantic_extra__.get(column)
        return None if value is None or isinstance(value, str) else float(value)


class CheckRecord(Line):
    """A line of the check-list of warning signs (`fedrbn.evaluation.checklist`)."""

    name: str
    passed: bool | None
    """None if it was not measured."""
    detail: str
    """What was measured, or why it was not."""
    allowed: str = ""
    """The threshold."""
    why: str = ""
    """What it means if the line fails."""
    column: str = ""
    """The robust accuracy that the line checks, by its name in the record (`ra`, `ra[aa]` …); empty: all of them."""


class MacsRecord(Line):
    """Multiply-accumulates in the paper's count and as our code executes them."""

    paper: JsonNumber
    actual: JsonNumber


class BytesRecord(Line):
    """Bytes sent from and to the server."""

    down: JsonNumber
    up: JsonNumber


class TrafficRecord(Line):
    """Bytes per round: of one client of each role, and of all participants."""

    client: dict[str, BytesRecord]
    round: BytesRecord


class CostRecord(Line):
    """What a run costs."""

    macs_per_epoch: MacsRecord
    macs_total: MacsRecord
    macs_per_image: dict[str, MacsRecord]
    traffic: TrafficRecord = Field(alias="bytes")


class EvaluationRecord(Origin):
    """An evaluation of all clients; the first one of a run is at the end of its training."""

    method: str
    data: str
    attack: str
    threat: str
    seed: int
    attacks: dict[str, AttackRecord]
    deployment: str
    part: str
    round: RecordedCount
    labels: dict[str, str]
    """The names of the domains in tables."""
    samples_digest: str
    users: dict[str, UserRecord]
    domains: dict[str, dict[str, AccuracyValue]]
    mean: dict[str, AccuracyValue]
    interval: dict[str, Interval]
    """The 95 % interval of the mean."""
    samples: dict[str, RecordedCount]
    worst_domain: dict[str, AccuracyValue]
    unanswered: dict[str, str] = {}
    """Clients that could not be evaluated, and why."""
    checks: Annotated[tuple[CheckRecord, ...], Strict(False)] | None = None
    """None if the check-list was not measured."""
    cost: CostRecord | None = None

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.attack not in self.attacks:
            raise ValueError(f"attack {self.attack!r} is not among its attacks")
        lost = self.mean.keys() - (self.interval.keys() & self.samples.keys())
        if lost:
            raise ValueError(f"column {min(lost)!r} has no interval or no count of samples")
        return self

    @property
    def main_attack(self) -> AttackRecord:
        """The attack of the column `ra`."""
        return self.attacks[self.attack]

    def robust_column(self, attack: str) -> str:
        """The column of the robust accuracy under one of the attacks."""
        return "ra" if attack == self.attack else f"ra[{attack}]"

    def clean_column(self, attack: str) -> str:
        """The column of the clean accuracy on the samples that one of the attacks was tried on."""
        return f"sa[{attack}]" if f"sa[{attack}]" in self.mean else "sa"

    def domain_label(self, domain: str) -> str:
        """The name of a domain in tables."""
        return self.labels.get(domain, domain)
