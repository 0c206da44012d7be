"""Validation during training: when it is due, and the score by which the best round is chosen."""

from __future__ import annotations

from fedrbn.evaluation.accuracy import Accuracy, deployment_name
from fedrbn.evaluation.protocol import collect_answers, main_label
from fedrbn.evaluation.summary import validation_summary
from fedrbn.federated.prediction import selecting_branch
from fedrbn.federated.prepared_experiment import PreparedExperiment
from fedrbn.federated.protocol import Execute, ServerState
from fedrbn.types import Member, Role


def validation_due(prepared: PreparedExperiment, number: int) -> bool:
    """Whether the state after a round, which counts from 1, is validated."""
    return number % prepared.experiment.train.validate_every == 0 or number == prepared.plan.schedule.rounds


def validate(prepared: PreparedExperiment, state: ServerState, execute: Execute) -> dict[str, float | None]:
    """Score the state on validation data, if there is any: RA of AT users and SA of ST users, as in the paper."""
    plan = prepared.plan
    if not prepared.outline.validation:
        return validation_summary([], plan.members, {})
    label = main_label(prepared.experiment)
    branches = {member.id: selecting_branch(plan, state, member) for member in plan.members}

    def question(member: Member) -> tuple[Accuracy]:
        attack = prepared.adversary if member.role is Role.AT else None
        return (Accuracy(branches[member.id], label, attack),)

    keys = {
        member.id: f"{label if member.role is Role.AT else 'clean'}@{deployment_name(branches[member.id])}"
        for member in plan.members
    }
    answers, _ = collect_answers(prepared, state, "validation", question, execute)
    return validation_summary(answers, plan.members, keys)
