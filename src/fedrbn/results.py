"""From per-sample answers to the numbers of a table: per user, per domain, in the mean over users."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from fedrbn.attacks import Attack
from fedrbn.evaluation import Question
from fedrbn.types import Answers, Branch, Member, Role


@dataclass(frozen=True)
class Row:
    """Accuracies of one user, or their mean over several, by column: sa, ra, and sa@… and ra@… per branch."""

    name: str
    values: dict[str, float]


def validation_question(role: Role, branch: Branch, attack: Attack) -> Question:
    """What model selection looks at: RA for AT users, SA for ST users, as in the paper."""
    return Question(branch, attack if role is Role.AT else None)


def validation_summary(answers: Iterable[Answers], members: Sequence[Member]) -> dict[str, float | None]:
    """The selection score (mean over all users) and its two parts; None where there is nothing to average."""
    roles = {member.id: member.role for member in members}
    scores: dict[Role, list[float]] = {Role.AT: [], Role.ST: []}
    for answer in answers:
        for correct in answer.correct.values():
            if len(correct):
                scores[roles[answer.client]].append(correct.double().mean().item())
    together = scores[Role.AT] + scores[Role.ST]
    return {
        "score": fmean(together) if together else None,
        "ra_at": fmean(scores[Role.AT]) if scores[Role.AT] else None,
        "sa_st": fmean(scores[Role.ST]) if scores[Role.ST] else None,
    }


def user_row(answer: Answers, predict: Branch) -> Row:
    """A user's SA and RA on each branch it was asked about; `sa` and `ra` are those of the branch that predicts."""
    values = {}
    for branch in Branch:
        for short, question in (("sa", "clean"), ("ra", "attacked")):
            correct = answer.correct.get(f"{question}@{branch.value}")
            if correct is not None and len(correct):
                values[f"{short}@{branch.value}"] = correct.double().mean().item()
                if branch is predict:
                    values[short] = values[f"{short}@{branch.value}"]
    return Row(answer.client, values)


def mean_row(name: str, rows: Sequence[Row]) -> Row:
    """The mean over users, each counting the same; a column that some user lacks is left out."""
    columns = [column for column in (rows[0].values if rows else {}) if all(column in row.values for row in rows)]
    return Row(name, {column: fmean(row.values[column] for row in rows) for column in columns})


def summary(answers: Iterable[Answers], members: Sequence[Member], predicts: Mapping[str, Branch]) -> dict[str, Any]:
    """The part of an evaluation record that tables are made of: users, domains, mean and worst domain."""
    member = {m.id: m for m in members}
    rows = [user_row(answer, predicts[answer.client]) for answer in answers]
    domains = {
        domain: mean_row(domain, [row for row in rows if member[row.name].domain == domain]).values
        for domain in dict.fromkeys(m.domain for m in members)
    }
    robust = {domain: values["ra"] for domain, values in domains.items() if "ra" in values}
    return {
        "users": {
            row.name: {
                "domain": member[row.name].domain,
                "role": member[row.name].role.value,
                "predicts": predicts[row.name].value,
                **row.values,
            }
            for row in rows
        },
        "domains": domains,
        "mean": mean_row("mean", rows).values,
        "worst_domain": min(robust, key=robust.__getitem__) if robust else None,
    }
