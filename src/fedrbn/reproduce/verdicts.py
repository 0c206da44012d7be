"""What our tables say about the paper's claims.

A gap is decided if it is larger than its uncertainty (see `decided`); a claim holds if all of its gaps do. Only tables
at a scale of COUNTING, as currently defined, are used.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, get_args

from fedrbn import config
from fedrbn.cost.count import cost
from fedrbn.reproduce import declarations, experiment_cells
from fedrbn.reproduce.claims import Claim, CostCheck, Gap, Place
from fedrbn.reproduce.declarations import Declaration, Part
from fedrbn.reproduce.experiment_cells import Threat
from fedrbn.reproduce.scales import SCALES
from fedrbn.reproduce.table_file import TableFile, read_table

COUNTING = ("full", "cpu")
"""Scales whose tables count, the largest first."""
STANDARD_ERRORS = 2.0
"""With several seeds, a gap must be larger than this many standard errors of its mean, and than half of ONE_SEED."""
P = 0.05
"""If a table has McNemar's test of the two cells, its p must also be below this."""


class Verdict(Enum):
    """What our tables say about a claim."""

    HOLDS = "holds"
    RELEASED_ONLY = "holds under the released arithmetic only"
    NOT_CONFIRMED = "not confirmed"
    CONTRADICTED = "contradicted"
    NOT_MEASURED = "not measured yet"


class Outcome(Enum):
    """What one table says about a gap, or about all gaps of a claim."""

    HOLDS = "holds"
    UNCLEAR = "too close"
    OPPOSITE = "the opposite"
    MISSING = "not measured"


@dataclass(frozen=True)
class TableEvidence:
    """The numbers of one valid table, by place and seed, and p of McNemar's test for pairs of places."""

    numbers: Mapping[Place, Mapping[int, float]]
    p: Mapping[tuple[Place, Place], float]


@dataclass(frozen=True)
class Decided:
    """A gap in one table: both sides, and the difference of each seed that has both."""

    more: float
    less: float
    seeds: Mapping[int, float]
    outcome: Outcome

    @property
    def mean(self) -> float:
        """The mean difference."""
        return fmean(self.seeds.values())


@dataclass(frozen=True)
class Finding:
    """All gaps of a claim in the table of one scale."""

    scale: str
    gaps: tuple[Decided | None, ...]
    outcome: Outcome


Tables = Mapping[tuple[str, str, str], TableEvidence]
"""Valid tables by experiment, scale and threat model."""


def tables(results: Path) -> Tables:
    """Every valid table in the folder of results."""
    contents = [read_table(path) for path in sorted(results.glob("*/table.json"))]
    return {(one.name, one.scale, one.threat): evidence(one) for one in contents if counts(one)}


def counts(content: TableFile) -> bool:
    """Whether a table was made at a scale that counts, as currently defined: an older scale has another description."""
    scale = content.scale
    return scale in COUNTING and content.caption.startswith(f"Scale {scale}: {SCALES[scale].about}.")


def evidence(content: TableFile) -> TableEvidence:
    """The numbers in a table of `fedrbn reproduce`, without parts that ran on other images than the paper's."""
    own = [number for number in content.numbers if number.part not in content.stand_ins]
    p = {
        (
            Place(one.part, one.row, one.column, one.metric),
            Place(one.part, one.against, one.column, one.metric),
        ): one.p
        for one in content.differences
    }
    return TableEvidence({Place(n.part, n.row, n.column, n.metric): n.seeds for n in own if n.seeds}, p)


def decided(gap: Gap, found: TableEvidence) -> Decided | None:
    """A gap in a table; None if no seed has both numbers.

    The difference beyond the required gap must be larger than its uncertainty: with one seed that is given, with
    several it is two standard errors, but at least half of that. If there is McNemar's test, it must agree.
    """
    less = found.numbers.get(gap.less, {})
    more = dict.fromkeys(less, 0.0) if gap.more is None else found.numbers.get(gap.more, {})
    seeds = {seed: value - less[seed] for seed, value in more.items() if seed in less}
    if not seeds:
        return None
    beyond = fmean(seeds.values()) - gap.by
    needed = gap.one_seed
    if len(seeds) > 1:
        needed = max(STANDARD_ERRORS * stdev(seeds.values()) / math.sqrt(len(seeds)), gap.one_seed / 2)
    tested = 0.0 if gap.more is None or gap.by else found.p.get((gap.more, gap.less), 0.0)
    outcome = Outcome.UNCLEAR
    if abs(beyond) >= needed and tested < P:
        outcome = Outcome.HOLDS if beyond > 0 else Outcome.OPPOSITE
    return Decided(fmean(more[seed] for seed in seeds), fmean(less[seed] for seed in seeds), seeds, outcome)


def together(wanted: Sequence[Gap], found: Sequence[Decided | None]) -> Outcome:
    """The joint outcome of the gaps of a claim: one that goes the other way is enough to contradict it."""
    outcomes = [Outcome.MISSING if one is None else one.outcome for one in found]
    if Outcome.OPPOSITE in outcomes:
        return Outcome.OPPOSITE
    if Outcome.MISSING in outcomes:
        return Outcome.MISSING
    deciding = {outcome for gap, outcome in zip(wanted, outcomes, strict=True) if gap.decides}
    return Outcome.HOLDS if deciding == {Outcome.HOLDS} else Outcome.UNCLEAR


def find(claim: Claim, threat: Threat, among: Tables) -> Finding | None:
    """The claim at the largest scale that has all of its numbers, or else any of them; None if none has."""
    wanted = claim.gaps
    partial = None
    for scale in COUNTING:
        table = among.get((claim.experiment or "", scale, threat))
        found = tuple(decided(gap, table) if table else None for gap in wanted)
        finding = Finding(scale, found, together(wanted, found))
        if all(found):
            return finding
        if partial is None and any(found):
            partial = finding
    return partial


def as_printed(claim: Claim) -> Finding | None:
    """The claim in the paper's own numbers, where a gap of any size counts; None if the paper prints none of them."""
    declaration = declarations.read(claim.experiment or "")
    printed = {
        Place(part.label, row.label, column.label, metric): {0: number}
        for part in declaration.parts
        for row in part.rows
        for column, numbers in zip(part.columns, row.paper, strict=False)
        for metric, number in zip(declaration.metrics, numbers, strict=False)
    }
    wanted = claim.gaps
    exact = [Gap(gap.more, gap.less, gap.by, math.ulp(100.0), gap.decides) for gap in wanted]
    found = tuple(decided(gap, TableEvidence(printed, {})) for gap in exact)
    return Finding("paper", found, together(exact, found)) if any(found) else None


def verdict(pixel: Outcome, released: Outcome) -> Verdict:
    """Robustness in pixels decides; the released arithmetic matters only if the claim does not hold there."""
    if pixel is Outcome.HOLDS:
        return Verdict.HOLDS
    if pixel is Outcome.MISSING:
        return Verdict.NOT_MEASURED
    if released is Outcome.HOLDS:
        return Verdict.RELEASED_ONLY
    return Verdict.CONTRADICTED if pixel is Outcome.OPPOSITE else Verdict.NOT_CONFIRMED


def threats(claim: Claim) -> tuple[Threat, ...]:
    """The threat models under which the claim's experiment can run: further attacks are only in pixels."""
    cells = experiment_cells.cells(declarations.read(claim.experiment or ""), SCALES["smoke"])
    known: tuple[Threat, ...] = get_args(Threat)
    return known[:1] if any(cell.attacks for cell in cells) else known


def commands(claim: Claim, missing: Iterable[Threat]) -> list[str]:
    """The commands that make the tables that a claim needs."""
    declaration = declarations.read(claim.experiment or "")
    part = claim.checks[0].part
    elsewhere = {str(other.data) for other in declaration.parts} != {str(_part(declaration, part).data)}
    only = f"{part}/" if elsewhere else ""  # parts on other images are not needed
    return [experiment_cells.command(declaration.name, claim.scale, threat=threat, only=only) for threat in missing]


def _part(declaration: Declaration, label: str) -> Part:
    return next(part for part in declaration.parts if part.label == label)


def ratio(check: CostCheck) -> float:
    """The ratio that `fedrbn cost` finds at the paper's size, in the paper's count."""
    top, bottom = (_count(check, settings) for settings in (check.of, check.over))
    return top / bottom


def _count(check: CostCheck, settings: dict[str, dict[str, Any]]) -> float:
    found = cost(config.make({"data": {"name": "digits"}, **settings}), "paper")
    counted = {
        "image of an ST user": lambda: found["macs_per_image"]["ST"],
        "epoch": lambda: found["macs_per_epoch"],
        "run": lambda: found["macs_total"],
    }
    return float(counted[check.count]()["paper"])
