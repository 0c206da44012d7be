"""The generated part of docs/claims.md: the rule, a table of verdicts, and the comparisons behind each verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedrbn.reproduce import claims, verdicts
from fedrbn.reproduce.claims import Claim, CostCheck, Gap, Place
from fedrbn.reproduce.experiment_cells import Threat
from fedrbn.reproduce.table_text import NOT_PERCENT
from fedrbn.reproduce.verdicts import Decided, Finding, Outcome, Verdict

MARKS = {Outcome.HOLDS: "✓", Outcome.UNCLEAR: "≈", Outcome.OPPOSITE: "✗"}


@dataclass(frozen=True)
class ClaimRow:
    """A claim, its verdict, the content of the three columns of numbers, and the lines of its section."""

    claim: Claim
    verdict: Verdict
    shown: tuple[str, str, str]
    section: list[str]


def markdown(declared: Sequence[Claim], results: Path) -> str:
    """The claims compared with the tables in the folder of results."""
    among = verdicts.tables(results)
    rows = [of_cost(claim, claim.cost) if claim.cost else of_tables(claim, among) for claim in declared]
    lines = [rule(), "", "| | claim | paper | ours, `pixel` | ours, `authors-release` | verdict |", "|---" * 6 + "|"]
    for number, row in enumerate(rows, start=1):
        lines.append(f"| {number} | {row.claim.text} | {' | '.join(row.shown)} | **{row.verdict.value}** |")
    for number, row in enumerate(rows, start=1):
        lines += ["", f"### {number}. {row.claim.text}", "", *row.section]
    return "\n".join(lines)


def rule() -> str:
    """How a verdict is decided, with the numbers that the code uses."""
    scales = " or ".join(f"`{scale}`" for scale in verdicts.COUNTING)
    return (
        "A claim is a list of comparisons. It holds if all of them hold. One comparison with the opposite result "
        "contradicts the claim; if one is too close to call, the claim is not confirmed. A difference counts if it is "
        f"large enough: with one seed, at least {claims.ONE_SEED:g} points; with several seeds, more than "
        f"{verdicts.STANDARD_ERRORS:g} standard errors of its mean and more than {claims.ONE_SEED / 2:g} point. If the "
        f"table has McNemar's test of the two cells, p must also be below {verdicts.P:g}. Claims about other numbers "
        "than accuracies have their own thresholds. The verdict is for `pixel`; if a claim holds only under "
        f"`authors-release`, the verdict says so. Only tables at scale {scales}, as currently defined, count.\n\n"
        "The column “paper” makes the same comparisons with the printed numbers, where any difference counts. If there "
        "are several differences, the table shows the smallest. ✓ as claimed, ≈ too close to call, ✗ the opposite."
    )


def of_tables(claim: Claim, among: verdicts.Tables) -> ClaimRow:
    """A claim that tables of `fedrbn reproduce` decide."""
    printed, possible = verdicts.as_printed(claim), verdicts.threats(claim)
    pixel, released = (verdicts.find(claim, threat, among) for threat in ("pixel", "authors-release"))
    found: dict[Threat, Finding | None] = {"pixel": pixel, "authors-release": released}
    outcomes = {threat: one.outcome if one else Outcome.MISSING for threat, one in found.items()}
    missing = [threat for threat in possible if outcomes[threat] is Outcome.MISSING]
    return ClaimRow(
        claim,
        verdicts.verdict(outcomes["pixel"], outcomes["authors-release"]),
        (_short(claim.gaps, printed), _short(claim.gaps, pixel), _short(claim.gaps, released)),
        [
            f"{claim.place}; `{claim.experiment}`.",
            *_comparisons(claim.gaps, [printed, *found.values()]),
            *_to_run(verdicts.commands(claim, missing)),
        ],
    )


def of_cost(claim: Claim, check: CostCheck) -> ClaimRow:
    """A claim that `fedrbn cost` decides, independent of the threat model."""
    found = verdicts.ratio(check)
    holds = check.at_least <= found <= check.at_most
    bounds = [f"at least {check.at_least:g}"] * (check.at_least > 0) + [f"at most {check.at_most:g}"]
    return ClaimRow(
        claim,
        Verdict.HOLDS if holds else Verdict.CONTRADICTED,
        (f"× {check.paper:.2f}", f"× {found:.2f}", "the same"),
        [
            f"{claim.place}; `fedrbn cost --scale paper`.",
            "",
            f"Ratio of the MACs of one {check.count}, in the paper's count: {found:.3f}. The claim holds if it is "
            f"{' and '.join(bounds)}. The paper's ratio is {check.paper:g}.",
        ],
    )


def _short(gaps: Sequence[Gap], finding: Finding | None) -> str:
    """The smallest difference that matters, and its scale and seeds."""
    if finding is None:
        return ""
    there = [(gap, one) for gap, one in zip(gaps, finding.gaps, strict=True) if one is not None]
    deciding = [(gap, one) for gap, one in there if gap.decides or one.outcome is Outcome.OPPOSITE]
    gap, least = min(deciding or there, key=lambda pair: (pair[1].mean - pair[0].by) / pair[0].one_seed)
    said = [_difference(gap, least), *([f"{len(there)} of {len(gaps)} known"] if len(there) < len(gaps) else [])]
    if finding.scale == "paper":
        return ", ".join([*said, *(["the opposite"] if finding.outcome is Outcome.OPPOSITE else [])])
    seeds = len(least.seeds)
    return f"{', '.join(said)} {MARKS.get(finding.outcome, '')} ({finding.scale}, {seeds} seed{'s' * (seeds > 1)})"


def _difference(gap: Gap, found: Decided) -> str:
    return _number(found.less if gap.more is None else found.mean, gap.less.metric, "+")


def _number(value: float, metric: str, sign: str = "") -> str:
    digits = f"{value:{sign}.3g}" if metric in NOT_PERCENT else f"{value:{sign}.1f}"
    return digits.replace("-", "−")


def _comparisons(gaps: Sequence[Gap], findings: Sequence[Finding | None]) -> list[str]:
    """Every comparison with a known number, and how many have none."""
    columns = [finding.gaps if finding else (None,) * len(gaps) for finding in findings]
    known = [(gap, found) for gap, found in zip(gaps, zip(*columns, strict=True), strict=True) if any(found)]
    if not known:
        return []
    lines = ["", "| | where | paper | `pixel` | `authors-release` |", "|---|---|---:|---:|---:|"]
    for gap, (printed, *ours) in known:
        cells = [_both(gap, printed), *(f"{_both(gap, one)} {MARKS[one.outcome]}" if one else "" for one in ours)]
        lines.append(f"| {' | '.join([*_named(gap), *cells])} |")
    left = len(gaps) - len(known)
    return [*lines, *(["", f"There are no numbers for {left} more."] if left else [])]


def _both(gap: Gap, found: Decided | None) -> str:
    if found is None:
        return ""
    metric = gap.less.metric
    if gap.more is None:
        return _number(found.less, metric, "+")
    return f"{_number(found.more, metric)} − {_number(found.less, metric)} = {_number(found.mean, metric, '+')}"


def _named(gap: Gap) -> tuple[str, str]:
    """What is compared, and the labels that both sides share."""
    less, more = gap.less, gap.more
    if more is None:
        return less.row, ", ".join(label for label in less[1:] if label != less.row and label)
    differ = [field for field in Place._fields if getattr(more, field) != getattr(less, field)]
    same = [getattr(less, field) for field in Place._fields if field not in differ]
    over = " over ".join(" ".join(getattr(place, field) for field in differ) for place in (more, less))
    step = "" if gap.decides else " (step)"
    asked = f", by more than {_number(gap.by, less.metric, '+')}" if gap.by else ""
    return f"{over}{asked}{step}", ", ".join(label for label in same if label)


def _to_run(commands: Sequence[str]) -> list[str]:
    if not commands:
        return []
    return ["", "Not measured yet:", "", "```", *commands, "```"]
