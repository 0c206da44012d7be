"""Summarise per-sample answers as the numbers of a table: per user, per domain, and as the mean over users.

Columns are named `sa` and `ra` for the deployed network, `ra adaptive` for the worst case over an adaptive adversary's
attacks, `sa@clean`, `ra@noised` … for a branch, deployed or not, and `ra[aa]`, `sa[aa]` … for a further attack and the
clean accuracy on its samples.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from fedrbn.federated.protocol import Answers
from fedrbn.types import Branch, Member, Role, Tensors


def validation_summary(
    answers: Iterable[Answers], members: Sequence[Member], keys: Mapping[str, str]
) -> dict[str, float | None]:
    """The score for model selection, the mean over users of RA (AT users) or SA (ST users), and its two parts.

    `keys` names the answer that counts for each client; a value is None if there is nothing to average.
    """
    roles = {member.id: member.role for member in members}
    scores: dict[Role, list[float]] = {Role.AT: [], Role.ST: []}
    for answer in answers:
        correct = answer.correct[keys[answer.client]]
        if len(correct):
            scores[roles[answer.client]].append(correct.double().mean().item())
    together = scores[Role.AT] + scores[Role.ST]
    return {
        "score": fmean(together) if together else None,
        "ra_at": fmean(scores[Role.AT]) if scores[Role.AT] else None,
        "sa_st": fmean(scores[Role.ST]) if scores[Role.ST] else None,
    }


def columns(correct: Tensors, deployed: str, main: str) -> Tensors:
    """A client's answers under the names of the table's columns; `main` is the attack of the column `ra`."""
    found: Tensors = {}
    for key, answer in correct.items():
        what, _, where = key.partition("@")
        where, _, adaptive = where.partition(" ")
        suffix = f" {adaptive}" if adaptive else ""
        limited = what.startswith("clean for ")
        label = what.removeprefix("clean for ")
        name = f"sa[{label}]" if limited else "sa" if what == "clean" else "ra" if what == main else f"ra[{what}]"
        if where == deployed:
            found[f"{name}{suffix}"] = answer
        if where in (branch.value for branch in Branch):
            found[f"{name}@{where}{suffix}"] = answer
    return found


def means(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean over users with equal weights; a column that some user lacks is left out."""
    shared = [column for column in (rows[0] if rows else {}) if all(column in row for row in rows)]
    return {column: fmean(row[column] for row in rows) for column in shared}


def interval(mean: float, samples: int) -> tuple[float, float]:
    """The 95 % interval of an accuracy that was measured on `samples` samples, after Wilson (1927)."""
    if samples == 0:
        return 0.0, 1.0
    z = 1.959964
    centre = (mean + z * z / (2 * samples)) / (1 + z * z / samples)
    half = z / (1 + z * z / samples) * math.sqrt(mean * (1 - mean) / samples + z * z / (4 * samples * samples))
    return max(0.0, centre - half), min(1.0, centre + half)


def summary(
    answers: Iterable[Answers], members: Sequence[Member], deployed: Mapping[str, str], main: str
) -> dict[str, Any]:
    """The part of an evaluation record for tables: users, domains, mean and interval, worst domain.

    `deployed` names each client's deployment. The interval treats the mean over users as one sample of all test images:
    it covers variation between test images, not between training runs.
    """
    member = {m.id: m for m in members}
    users: dict[str, dict[str, float]] = {}
    counts: dict[str, int] = {}
    for answer in answers:
        table = columns(answer.correct, deployed[answer.client], main)
        users[answer.client] = {name: right.double().mean().item() for name, right in table.items() if len(right)}
        for name, right in table.items():
            counts[name] = counts.get(name, 0) + len(right)
    domains = {
        domain: means([row for client, row in users.items() if member[client].domain == domain])
        for domain in dict.fromkeys(m.domain for m in members)
    }
    mean = means(list(users.values()))
    return {
        "users": {
            client: {
                "domain": member[client].domain,
                "role": member[client].role.value,
                **_own_duty(member[client]),
                "predicts": deployed[client],
                **row,
            }
            for client, row in users.items()
        },
        "domains": domains,
        "mean": mean,
        "interval": {name: list(interval(value, counts[name])) for name, value in mean.items()},
        "samples": {name: counts[name] for name in mean},
        "worst_domain": {
            name: min(value[name] for value in domains.values())
            for name in mean
            if all(name in value for value in domains.values())
        },
    }


def _own_duty(member: Member) -> dict[str, str]:
    """The duty, if it does not follow from the role."""
    return {} if member.duty == member.role.duty else {"duty": str(member.duty)}
