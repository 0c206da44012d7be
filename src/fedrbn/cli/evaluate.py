"""fedrbn evaluate: the robustness of a trained run under any attacks, with checks, comparisons and gates."""

from __future__ import annotations

import operator
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from fedrbn.builtin import alternatives
from fedrbn.builtin.attacks import CORRUPTIONS, FAMILIES, PAPER, PAPER_TABLE
from fedrbn.cli.output import console, print_json, say, watching
from fedrbn.errors import EvaluationError

if TYPE_CHECKING:
    from fedrbn.evaluation.protocol import EvaluationSettings
    from fedrbn.evaluation.records import CheckRecord, EvaluationRecord
    from fedrbn.evaluation.significance import Comparison

SEVERITIES = (1, 3, 5)
"""The severities, out of five, that `--attacks corruptions` tries of each common corruption."""


def evaluate(
    directory: Annotated[Path, typer.Argument(help="A directory made by fedrbn run.")],
    attacks: Annotated[
        str | None,
        typer.Option(
            help=f"Attacks, separated by commas: {alternatives([*PAPER, *FAMILIES])}. Settings follow a colon, such as "
            "pgd:steps=50,eps=8/255,step=1/255,restarts=5 or contrast:severity=3; ε is the run's own unless given. "
            f"'paper' is the paper's table, {', '.join(PAPER_TABLE)}; "
            f"'corruptions' is {', '.join(CORRUPTIONS)}, each at severities {', '.join(map(str, SEVERITIES))}. "
            "Default: the attack of the run."
        ),
    ] = None,
    predict: Annotated[
        Literal["clean", "noised", "confident"] | None,
        typer.Option(
            help="The branch that predicts: BN_c (clean), BN_a (noised), or the more confident one for each input."
        ),
    ] = None,
    adaptive: Annotated[
        bool, typer.Option(help="Also attack each branch and their mean loss; report the worst per sample.")
    ] = True,
    checks: Annotated[
        bool,
        typer.Option(
            help="Run the check-list on every printed RA. With --no-checks the output marks them as unchecked."
        ),
    ] = True,
    samples: Annotated[int | None, typer.Option(min=1, help="Test samples per client; default: all.")] = None,
    subset: Annotated[int, typer.Option(min=1, help="Test samples per client for AutoAttack, square and LSA.")] = 10,
    against: Annotated[Path | None, typer.Option(help="Compare sample by sample with this other run.")] = None,
    require: Annotated[
        list[str] | None,
        typer.Option(
            help="A condition such as 'ra>=0.40' or 'worst_domain_ra>=0.1'; repeatable. A condition on an RA also "
            "needs every check of that RA to be measured, unless you opt out with --no-checks."
        ),
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Worker processes; 1 evaluates in this process.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the record as JSON instead of tables.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Do not show progress.")] = False,
) -> None:
    """Evaluate a finished run under any attacks: SA and RA per client, per domain, and their mean.

    Exit code 1 if a check fails, a requirement is not met, or a required RA could not be checked.
    """
    from fedrbn.evaluation.accuracy import CONFIDENT, Deployment
    from fedrbn.evaluation.protocol import EvaluationSettings
    from fedrbn.evaluation.records import EvaluationRecord
    from fedrbn.runs import train
    from fedrbn.types import Branch

    conditions = [parse_condition(text) for text in require or []]
    deployment: Deployment | None = None
    if predict is not None:
        deployment = CONFIDENT if predict == "confident" else Branch(predict)
    settings = EvaluationSettings(attack_texts(attacks), deployment, adaptive, samples, subset, checks)
    conditions = [known_column(condition, directory, settings) for condition in conditions]
    with watching("evaluate", quiet) as watcher:
        record = EvaluationRecord.from_json(train.evaluate(directory, settings, workers=workers, watcher=watcher))
    show_record(record, directory, against, as_json)
    complaints = [*failures(record), *(text for c in conditions for text in objections(record, c))]
    for text in (*warnings(record), *complaints):
        say(text)
    if complaints:
        raise typer.Exit(1)


def attack_texts(text: str | None) -> tuple[str, ...]:
    """The attacks of a comma-separated list; settings after a colon also have commas and stay with their attack."""
    parts: list[str] = []
    for part in (text or "").split(","):
        if "=" in part and ":" not in part and parts:
            parts[-1] += f",{part}"
        elif part.strip():
            parts.append(part.strip())
    corruptions = tuple(f"{kind}:severity={severity}" for kind in CORRUPTIONS for severity in SEVERITIES)
    named = {"paper": PAPER_TABLE, "corruptions": corruptions}
    return tuple(found for part in parts for found in named.get(part, (part,)))


Condition = tuple[str, str, Any, float]

WORST = "worst_domain_"
"""Prefix of a column's name: its value in the domain where it is lowest."""


def parse_condition(text: str) -> Condition:
    """`ra>=0.40` as (text, column, comparison, bound)."""
    comparisons = {">=": operator.ge, ">": operator.gt, "<=": operator.le, "<": operator.lt}
    match = re.fullmatch(r"\s*([^\[<>=]+(?:\[[^\]]*\])?[^<>=]*?)\s*(>=|<=|>|<)\s*(\d*\.?\d+|\d+\.)\s*", text)
    if match is None:
        raise EvaluationError(
            f"got requirement {text!r}; expected a column, a comparison and a number between 0 and 1, such as "
            "'ra>=0.40', 'sa>=0.8', 'ra adaptive>=0.35' or 'worst_domain_ra>=0.1'."
        )
    bound = float(match[3])
    if bound > 1:
        guess = f"Did you mean {bound / 100:g}?" if bound <= 100 else "Accuracies are shares, not percentages."
        raise EvaluationError(f"got requirement {text!r}; expected a number between 0 and 1. {guess}")
    return text, match[1].strip(), comparisons[match[2]], bound


def known_column(condition: Condition, directory: Path, settings: EvaluationSettings) -> Condition:
    """The condition, if this evaluation will have its column; otherwise it is refused before the evaluation starts."""
    from fedrbn.evaluation.protocol import column_named, column_names
    from fedrbn.evaluation.tables import shown_column
    from fedrbn.runs.directory import RunDirectory

    text, column, compare, bound = condition
    experiment = RunDirectory.open(directory).experiment()
    worst = WORST if column.startswith(WORST) else ""
    name, known = column_named(column.removeprefix(WORST), experiment, settings), column_names(experiment, settings)
    if name not in known:
        listed = ", ".join(map(shown_column, known))
        raise EvaluationError(f"got requirement {text!r}; expected a column of this evaluation: {listed}.")
    return text, f"{worst}{name}", compare, bound


def meets(record: EvaluationRecord, condition: Condition) -> bool:
    """Whether a record meets a condition; a column that the record lacks is an error."""
    text, column, compare, bound = condition
    table = record.worst_domain if column.startswith(WORST) else record.mean
    name = column.removeprefix(WORST)
    if name not in table:
        raise EvaluationError(f"got requirement {text!r}; expected a column of this evaluation: {', '.join(table)}.")
    return bool(compare(table[name], bound))


def warnings(record: EvaluationRecord) -> list[str]:
    """Warnings about robust accuracies of a record that were not checked."""
    if record.checks is None:
        return ["UNCHECKED: with --no-checks these robust accuracies may be too high, because nothing verifies them."]
    return [f"NOT MEASURED: {_line(check)}" for check in record.checks if check.passed is None]


def failures(record: EvaluationRecord) -> list[str]:
    """The checks that failed."""
    return [
        f"check failed: {_line(check)}. This suggests: {check.why}. Do not trust these robust accuracies."
        for check in record.checks or ()
        if check.passed is False
    ]


def objections(record: EvaluationRecord, condition: Condition) -> list[str]:
    """Why a requirement is not met: the number is too low, or the robust accuracy was not checked.

    With --no-checks there is no check-list, and the number alone decides.
    """
    text, column, _, _ = condition
    if not meets(record, condition):
        return [f"requirement not met: {text}"]
    judged = _judged_column(record, column)
    if judged is None or record.checks is None:
        return []
    about = [check for check in record.checks if check.column in ("", judged)]
    if not any(check.column for check in about):
        return [f"requirement not met: {text}, because no check covers {judged}"]
    return [
        f"requirement not met: {text}, because this check was not measured: {_line(check)}"
        for check in about
        if check.passed is None
    ]


def _judged_column(record: EvaluationRecord, column: str) -> str | None:
    """The check-list's column for the accuracy in a condition; None for a clean accuracy."""
    name = column.removeprefix(WORST).removesuffix(" adaptive")
    if not name.startswith("ra"):
        return None
    attack, _, branch = name.partition("@")
    everybody = {user.predicts for user in record.users.values()} == {branch}
    return attack if everybody else name


def _line(check: CheckRecord) -> str:
    judged = f"{check.column}: " if check.column else ""
    return f"{judged}{check.name} ({check.detail})"


def compared(directory: Path, against: Path) -> list[Comparison]:
    """The newest evaluations of two runs, compared sample by sample for the attacks that both have."""
    from fedrbn.evaluation.significance import compare
    from fedrbn.runs.directory import RunDirectory
    from fedrbn.runs.records import evaluations

    ours, theirs = RunDirectory.open(directory), RunDirectory.open(against)
    records = [evaluations(run) for run in (ours, theirs)]
    if not records[1]:
        raise EvaluationError(f"got {against}, which has no evaluation; expected a finished run. Evaluate it first.")
    if records[0][-1].samples_digest != records[1][-1].samples_digest:
        raise EvaluationError(
            f"got {against}, which was tested on other images; expected the same test samples. Compare runs with the "
            "same data, federation settings and seed."
        )
    here, there = (record[-1].attacks for record in records)
    other = {label for label in here.keys() & there.keys() if here[label].settings != there[label].settings}
    if other:
        raise EvaluationError(
            f"got attack {sorted(other)[0]!r} with other settings in {against}; expected the same attack in both. "
            "Evaluate that run with the same --attacks first."
        )
    return compare(ours.answers(), theirs.answers())


def show_record(record: EvaluationRecord, directory: Path, against: Path | None, as_json: bool) -> None:
    """The tables of an evaluation, or the record as JSON."""
    from dataclasses import asdict

    from fedrbn.evaluation.tables import attacks_table, checks_table, evaluation_table, significance_table

    comparisons = [] if against is None else compared(directory, against)
    if as_json:
        beside = {} if against is None else {"against": [asdict(found) for found in comparisons]}
        print_json(record.to_json() | beside)
        return
    page = console()
    page.print(evaluation_table(record))
    if len(record.attacks) > 1:
        page.print(attacks_table(record))
    if record.checks is not None:
        page.print(checks_table(record))
    if against is not None:
        page.print(significance_table(comparisons, str(against)))
