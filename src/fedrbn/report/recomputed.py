"""Computed from a run's checkpoint, because records do not contain it: who gave robustness to whom, the check-list."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedrbn.evaluation import checklist as checking
from fedrbn.evaluation.accuracy import Accuracy
from fedrbn.evaluation.protocol import collect_answers, main_label, threat_eps
from fedrbn.evaluation.records import CheckRecord
from fedrbn.federated.assemble import Assembly
from fedrbn.federated.prediction import predicting_branch
from fedrbn.federated.protocol import Question
from fedrbn.federated.server import donor_weights
from fedrbn.runs.load import Trained
from fedrbn.types import Member, Role

CHECKED = 8
"""Test samples per user for the check-list, if no evaluation has measured it."""


@dataclass(frozen=True)
class Donations:
    """α of Eq. 4: a row for each receiver (ST) and a column for each donor (AT); rows sum to 1."""

    receivers: tuple[Member, ...]
    donors: tuple[Member, ...]
    weights: tuple[tuple[float, ...], ...]

    def by_domain(self) -> tuple[tuple[str, ...], tuple[str, ...], tuple[tuple[float, ...], ...]]:
        """Receivers' domains, donors' domains, and the mean weight between them."""
        ours = tuple(dict.fromkeys(member.domain for member in self.receivers))
        theirs = tuple(dict.fromkeys(member.domain for member in self.donors))
        table = []
        for domain in ours:
            rows = [row for member, row in zip(self.receivers, self.weights, strict=True) if member.domain == domain]
            table.append(tuple(self._taken(rows, donor) for donor in theirs))
        return ours, theirs, tuple(table)

    def _taken(self, rows: Sequence[Sequence[float]], domain: str) -> float:
        columns = [j for j, donor in enumerate(self.donors) if donor.domain == domain]
        return sum(row[j] for row in rows for j in columns) / len(rows)

    @property
    def own_domain(self) -> float:
        """The mean share that receivers take from donors of their own domain."""
        pairs = zip(self.receivers, self.weights, strict=True)
        own = [
            sum(weight for donor, weight in zip(self.donors, row, strict=True) if donor.domain == member.domain)
            for member, row in pairs
        ]
        return sum(own) / len(own)


def donations(trained: Trained) -> Donations | None:
    """The propagation weights of the chosen state's BN_a; None if the method does not propagate or had no donors."""
    members = trained.plan.members
    receivers = [member.id for member in members if member.role is Role.ST]
    donors, alpha = donor_weights(trained.state, trained.plan, receivers)
    if not donors or not receivers:
        return None
    known = {member.id: member for member in members}
    return Donations(
        tuple(known[receiver] for receiver in receivers),
        tuple(known[donor] for donor in donors),
        tuple(tuple(row) for row in alpha.tolist()),
    )


def checklist(trained: Trained, assembly: Assembly) -> tuple[CheckRecord, ...]:
    """The check-list of the run's attack on a few test samples of one user of each role and domain.

    `fedrbn evaluate` uses every user and more samples. A page should not take that long, so the list itself says that
    it is based on too few samples.
    """
    tested = [client for client in assembly.federation.clients if len(client.test)]
    if not tested:
        return ()
    prepared = assembly.with_plan(trained.plan)
    label, eps, attack = main_label(trained.experiment), threat_eps(prepared), prepared.adversary
    chosen = {client.id for client in {(client.domain, client.role): client for client in reversed(tested)}.values()}
    branches = {
        member.id: predicting_branch(trained.plan, trained.state, member)
        for member in trained.plan.members
        if member.id in chosen
    }

    def questions(member: Member) -> tuple[Question, ...]:
        branch = branches.get(member.id)
        if branch is None:
            return ()
        printed = Accuracy(branch, label, attack, limit=CHECKED, radius=checking.radius(attack, eps))
        return (printed, *checking.questions(branch, {label: attack}, eps, CHECKED))

    with prepared.executor() as execute:
        answers, _ = collect_answers(prepared, trained.state, "test", questions, execute)
    evidence = checking.Evidence(answers, {client: branch.value for client, branch in branches.items()})
    return tuple(checking.judge(evidence, {"ra": (label, attack)}, eps, len(trained.classes), checking.IMAGES))
