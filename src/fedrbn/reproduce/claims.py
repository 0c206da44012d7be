"""The paper's empirical claims, declared in `experiments/claims.toml`, and the gaps that decide each claim.

A claim is a sentence, its place in the paper, and checks. A check names cells of one experiment and their order; it
consists of gaps, each one number minus another. `verdicts` decides them from our tables.
"""

from __future__ import annotations

import itertools
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from fedrbn.errors import ConfigError
from fedrbn.reproduce import declarations

ONE_SEED = 2.0
"""With one seed, a gap of fewer points than this decides nothing."""


class _Declared(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class TableCheck(_Declared):
    """Cells of a table in the order that a claim states, for every combination of the other two labels."""

    part: str = "Digits"
    rows: tuple[str, ...]
    columns: tuple[str, ...] = ("",)
    metrics: tuple[str, ...] = ("RA",)
    along: Literal["rows", "columns", "metrics"] = "rows"
    """Which of the three labels is compared."""
    rule: Literal["first", "falling", "negative"] = "first"
    """first: the first is larger than each of the others. falling: the first is larger than the last, and no step
    between neighbours goes the other way. negative: each number is below zero."""
    by: float = 0.0
    """By how much it must be larger; a negative value says how much smaller it may be."""
    one_seed: float = ONE_SEED
    """Uncertainty of a gap with one seed, if the numbers are not accuracies."""


class CostCheck(_Declared):
    """A ratio of two costs, counted as in `fedrbn cost --scale paper`."""

    count: Literal["image of an ST user", "epoch", "run"]
    of: dict[str, dict[str, Any]]
    over: dict[str, dict[str, Any]]
    at_least: float = 0.0
    at_most: float = math.inf
    paper: float
    """The ratio that the paper states or prints."""


class Claim(_Declared):
    """One sentence of the paper and what decides it: checks of an experiment's tables, or a ratio of costs."""

    name: str
    text: str
    place: str
    experiment: str | None = None
    scale: Literal["full", "cpu"] = "cpu"
    """The scale to run it at, if it has not run yet."""
    checks: tuple[TableCheck, ...] = ()
    cost: CostCheck | None = None

    @model_validator(mode="after")
    def _decidable(self) -> Claim:
        if bool(self.experiment and self.checks) == (self.cost is not None):
            raise ValueError(f"got claim {self.name!r}; expected an experiment with checks, or a cost, and not both")
        return self

    @property
    def gaps(self) -> list[Gap]:
        """The gaps of all checks."""
        return [gap for check in self.checks for gap in gaps(check)]


class Place(NamedTuple):
    """A number's place in a table."""

    part: str
    row: str
    column: str
    metric: str


@dataclass(frozen=True)
class Gap:
    """One number that should be larger than another (or than zero) by at least `by`."""

    more: Place | None
    less: Place
    by: float
    one_seed: float
    decides: bool = True
    """Whether the claim needs it; otherwise it must only not go the other way."""


def read(path: Path | None = None) -> tuple[Claim, ...]:
    """The claims declared with the experiments."""
    path = path or declarations.EXPERIMENTS / "claims.toml"
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
        return tuple(Claim.model_validate(claim) for claim in values["claims"])
    except (tomllib.TOMLDecodeError, ValidationError, KeyError) as error:
        raise ConfigError(f"got {path}, which is not a list of claims: {error}") from None


def gaps(check: TableCheck) -> list[Gap]:
    """The gaps of a check."""
    labels = {"rows": check.rows, "columns": check.columns, "metrics": check.metrics}
    compared = labels.pop(check.along)
    found = []
    for fixed in itertools.product(*labels.values()):
        named = dict(zip(labels, fixed, strict=True))
        places = [_place(check.part, {**named, check.along: label}) for label in compared]
        found += [
            Gap(more, less, check.by, check.one_seed, decides) for more, less, decides in _ordered(places, check.rule)
        ]
    return found


def _place(part: str, labels: Mapping[str, str]) -> Place:
    return Place(part, labels["rows"], labels["columns"], labels["metrics"])


def _ordered(places: Sequence[Place], rule: str) -> list[tuple[Place | None, Place, bool]]:
    """Pairs (more, less, whether it decides)."""
    if rule == "negative":
        return [(None, place, True) for place in places]
    if rule == "first":
        return [(places[0], other, True) for other in places[1:]]
    steps = [(more, less, False) for more, less in itertools.pairwise(places)] if len(places) > 2 else []
    return [(places[0], places[-1], True), *steps]
