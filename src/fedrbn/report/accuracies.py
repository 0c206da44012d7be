"""The accuracies of a run's networks: key numbers, domains, users, further attacks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from fedrbn.evaluation.records import EvaluationRecord, UserRecord
from fedrbn.evaluation.tables import BRANCH, predicts
from fedrbn.report.charts import DotRow, dots
from fedrbn.report.content import Figure, PageTable, Tile, accuracy
from fedrbn.report.gather import Run

SHOWN = {"SA": "sa", "RA": "ra", "RA adaptive": "ra adaptive"}
"""The accuracies of the network that predicts, by the name of their column in records."""


@dataclass(frozen=True)
class Accuracies:
    """The section on accuracies: key numbers, domains as a chart, users as a table, further attacks."""

    tiles: tuple[Tile, ...]
    figure: Figure
    users: PageTable
    attacks: PageTable | None
    reading: str


def columns_of(evaluation: EvaluationRecord) -> dict[str, str]:
    """The accuracies to show, by name: of the deployed network, then of branches that are not deployed, if any."""
    shown = dict(SHOWN)
    tables = [evaluation.mean, *evaluation.domains.values()]
    for branch, name in BRANCH.items():
        own = {f"SA {name}": f"sa@{branch}", f"RA {name}": f"ra@{branch}"}
        if "sa@noised" in evaluation.mean and any(table.get(f"sa@{branch}") != table.get("sa") for table in tables):
            shown |= own
    return {name: column for name, column in shown.items() if column in evaluation.mean}


def accuracies(run: Run, evaluation: EvaluationRecord) -> Accuracies:
    """The section on accuracies, from the final evaluation of the training and later evaluations."""
    return Accuracies(
        tiles=_tiles(evaluation),
        figure=_domains(evaluation),
        users=_users(evaluation),
        attacks=_attacks(run.evaluations),
        reading=_reading(evaluation),
    )


def _tiles(evaluation: EvaluationRecord) -> tuple[Tile, ...]:
    tiles = []
    for name, column in SHOWN.items():
        if column in evaluation.mean:
            low, high = evaluation.interval.get(column, (0.0, 1.0))
            detail = f"mean over users; 95 % interval {accuracy(low)}–{accuracy(high)}"
            tiles.append(Tile(name, f"{accuracy(evaluation.mean[column])} %", detail))
    column = "ra adaptive" if "ra adaptive" in evaluation.worst_domain else "ra"
    if column in evaluation.worst_domain:
        worst = min(evaluation.domains, key=lambda domain: evaluation.domains[domain].get(column, 1.0))
        value = f"{accuracy(evaluation.worst_domain[column])} %"
        tiles.append(Tile("Worst domain", value, f"{evaluation.domain_label(worst)}, {_name(column)}"))
    return tuple(tiles)


def _name(column: str) -> str:
    return next((name for name, known in SHOWN.items() if known == column), column)


def _domains(evaluation: EvaluationRecord) -> Figure:
    columns = columns_of(evaluation)
    rows: list[tuple[str, Mapping[str, float]]] = [
        (evaluation.domain_label(domain), values) for domain, values in evaluation.domains.items()
    ]
    apart = len(rows)
    for role in ("AT", "ST"):
        users = [user for user in evaluation.users.values() if user.role == role]
        if users:
            rows.append((f"{role} users", _means(users, columns.values())))
    rows.append(("all users", evaluation.mean))
    dot_rows = [
        DotRow(label, {name: values[column] for name, column in SHOWN.items() if column in values})
        for label, values in rows
    ]
    table = PageTable(
        "Accuracies in %, by domain and role",
        ("domain", *columns),
        tuple((label, *(accuracy(values.get(column)) for column in columns.values())) for label, values in rows),
        totals=len(rows) - apart,
    )
    title = "Accuracy by domain"
    return Figure(title, dots(title, dot_rows, list(SHOWN), apart), table)


def _means(users: Sequence[UserRecord], columns: Iterable[str]) -> dict[str, float]:
    """The mean over users for every column that all of them have."""
    means = {}
    for column in columns:
        values = [value for user in users if (value := user.accuracy(column)) is not None]
        if len(values) == len(users):
            means[column] = fmean(values)
    return means


def _users(evaluation: EvaluationRecord) -> PageTable:
    columns = columns_of(evaluation)
    rows = tuple(
        (
            name,
            evaluation.domain_label(user.domain),
            user.role,
            BRANCH.get(user.predicts, user.predicts),
            *(accuracy(user.accuracy(column)) for column in columns.values()),
        )
        for name, user in evaluation.users.items()
    )
    return PageTable("Every user, in %", ("user", "domain", "role", "predicts with", *columns), rows, text_columns=4)


def _attacks(evaluations: Sequence[EvaluationRecord]) -> PageTable | None:
    """All evaluated attacks, if there are more than the one of the final evaluation."""
    rows: dict[str, tuple[str, ...]] = {}
    for evaluation in evaluations:
        for label, attack in evaluation.attacks.items():
            column, clean = evaluation.robust_column(label), evaluation.clean_column(label)
            low, high = evaluation.interval.get(column, (0.0, 1.0))
            rows[f"{label} {attack.settings} {evaluation.deployment}"] = (
                label,
                BRANCH.get(evaluation.deployment, evaluation.deployment),
                "–" if attack.eps is None else f"{255 * attack.eps:g}/255",
                str(evaluation.samples.get(column, 0)),
                accuracy(evaluation.mean.get(clean)),
                accuracy(evaluation.mean.get(column)),
                f"{accuracy(low)}–{accuracy(high)}",
                accuracy(evaluation.mean.get(f"{column} adaptive")),
                accuracy(evaluation.worst_domain.get(column)),
            )
    if len(rows) < 2:
        return None
    head = ("attack", "deployed", "ε", "samples", "SA", "RA", "95 % interval of RA", "RA adaptive", "RA worst domain")
    return PageTable("All evaluated attacks, accuracies in %", head, tuple(rows.values()), text_columns=2)


def _reading(evaluation: EvaluationRecord) -> str:
    radius = evaluation.main_attack.eps
    eps = "" if radius is None else f", ε = {255 * radius:g}/255"
    branch = predicts(evaluation)
    flattering = (
        ""
        if evaluation.threat == "pixel"
        else " This is the released code's arithmetic, for comparison only: it says"
        " nothing about robustness in pixel space."
    )
    return (
        f"SA: clean test images. RA: under {evaluation.attack}{eps} (threat model {evaluation.threat}) on the network "
        f"that predicts ({branch}). RA adaptive: the worst, per image, of attacks on that network, on each branch and "
        f"on their mean loss.{flattering}"
    )
