"""The evaluation of every client, at the end of a run or by `fedrbn evaluate`, and its record."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from fedrbn.attacks import (
    AutoAttack,
    LocalSearch,
    LogitsAttack,
    Untargeted,
    attack_named,
    described,
    epsilon,
    from_config,
    with_eps,
)
from fedrbn.config import Experiment
from fedrbn.errors import FederationError
from fedrbn.evaluation import checklist
from fedrbn.evaluation.accuracy import Accuracy, Deployment, deployment_name
from fedrbn.evaluation.checklist import Evidence, check_line
from fedrbn.evaluation.provenance import precision_name, versions
from fedrbn.evaluation.records import CheckRecord, EvaluationRecord
from fedrbn.evaluation.summary import columns, summary
from fedrbn.federated.executors import malice
from fedrbn.federated.options import configure
from fedrbn.federated.prediction import predicting_branch
from fedrbn.federated.prepared_experiment import PreparedExperiment
from fedrbn.federated.privacy import accountant
from fedrbn.federated.protocol import Answers, Evaluate, Execute, Failure, Question, Result, Round, ServerState
from fedrbn.federated.server import round_of
from fedrbn.federated.uploads.collection import in_order
from fedrbn.types import Branch, Member, Tensors

EXPENSIVE = (AutoAttack, LocalSearch)
"""Attacks that need thousands of passes per image: they are tried on a subset."""


@dataclass(frozen=True)
class EvaluationSettings:
    """How to evaluate: with which attacks, on how many images, and how the networks are deployed."""

    attacks: tuple[str, ...] = ()
    """Attacks as in `fedrbn evaluate --attacks`, such as "pgd-20"; default: the attack of the run's config."""
    deployment: Deployment | None = None
    """How the networks are deployed; None uses the branch that each client predicts with."""
    adaptive: bool = True
    """Also attack every branch of a dual network and their mean loss, and report the worst case per sample."""
    samples: int | None = None
    """Test samples per client; None uses all."""
    subset: int = 10
    """Test samples per client for attacks that need thousands of passes per image."""
    checks: bool = False
    """Also run the check-list, which detects robust accuracies that are too high."""


def evaluate_clients(
    prepared: PreparedExperiment, state: ServerState, execute: Execute, settings: EvaluationSettings
) -> tuple[EvaluationRecord, Tensors]:
    """Ask every client; returns the record for tables and the answer to each question for each sample."""
    plan, experiment = prepared.plan, prepared.experiment
    attacks = _attacks(experiment, settings, prepared.adversary, threat_eps(prepared))
    deployments: dict[str, Deployment] = {
        member.id: settings.deployment or predicting_branch(plan, state, member) for member in plan.members
    }

    def questions(member: Member) -> tuple[Question, ...]:
        return _questions(plan.method.branches, settings, attacks, deployments[member.id], threat_eps(prepared))

    answers, unanswered = collect_answers(prepared, state, "test", questions, execute, settings.samples)
    checks = _checks(prepared, state, execute, settings, attacks, deployments, answers) if settings.checks else None
    main = next(iter(attacks))
    deployed = {client: deployment_name(deployment) for client, deployment in deployments.items()}
    plain = [Answers(a.client, a.round, _without_checks(a.correct)) for a in answers]
    line = {
        **origin_of(prepared),
        "attack": main,
        "attacks": {label: _described(prepared, attack) for label, attack in attacks.items()},
        "deployment": deployment_name(settings.deployment or plan.method.predict),
        "part": "test",
        "round": state.round,
        "labels": prepared.outline.labels,
        "samples_digest": prepared.samples_digest(),
        **summary(plain, [m for m in plan.members if m.id not in unanswered], deployed, main),
    }
    if unanswered:
        line["unanswered"] = unanswered
    if checks is not None:
        line["checks"] = checks
    stored = {
        f"{answer.client}/{column}": right
        for answer in plain
        for column, right in columns(answer.correct, deployed[answer.client], main="").items()  # name every attack
    }
    return EvaluationRecord.from_json(line), stored


def ensure_attacks(experiment: Experiment, settings: EvaluationSettings, classes: int) -> None:
    """Refuse attacks that are unknown, lack their package or cannot attack this many classes, before evaluating."""
    adversary = Untargeted(from_config(experiment.attack))
    for attack in _attacks(experiment, settings, adversary, _eps(experiment, adversary)).values():
        if isinstance(attack, AutoAttack):
            attack.ensure_enough(classes)


def column_names(experiment: Experiment, settings: EvaluationSettings) -> list[str]:
    """The columns that an evaluation of this experiment can have, without evaluating anything."""
    adversary = Untargeted(from_config(experiment.attack))
    eps = _eps(experiment, adversary)
    attacks = _attacks(experiment, settings, adversary, eps)
    branches = configure(experiment.method, adversary.attack).branches
    deployments: list[Deployment] = [settings.deployment] if settings.deployment else list(branches)
    found: dict[str, None] = {}
    for deployment in deployments:
        asked = _questions(branches, settings, attacks, deployment, eps)
        answers = {name: torch.empty(0) for question in asked for name in question.names}
        found |= dict.fromkeys(columns(_without_checks(answers), deployment_name(deployment), next(iter(attacks))))
    return list(found)


def column_named(name: str, experiment: Experiment, settings: EvaluationSettings) -> str:
    """The column that a text refers to; ε may be omitted, and branches named as in tables: `ra[pgd-20]@BN_a`."""
    name = name.replace("@BN_a", f"@{Branch.NOISED.value}").replace("@BN_c", f"@{Branch.CLEAN.value}")
    metric, bracket, rest = name.partition("[")
    text, _, after = rest.partition("]")
    if not bracket:
        return name
    adversary = Untargeted(from_config(experiment.attack))
    eps = _eps(experiment, adversary)
    label, first = with_eps(text, eps), next(iter(_attacks(experiment, settings, adversary, eps)))
    return f"{metric}{after}" if label == first and metric == "ra" else f"{metric}[{label}]{after}"


def _attacks(
    experiment: Experiment, settings: EvaluationSettings, adversary: LogitsAttack, eps: float
) -> dict[str, LogitsAttack]:
    """The attacks of an evaluation by their labels, which include ε; the run's own if none are named."""
    texts = [with_eps(text, eps) for text in settings.attacks]
    return {text: attack_named(text, experiment.attack) for text in texts} or {main_label(experiment): adversary}


def _questions(
    branches: tuple[Branch, ...],
    settings: EvaluationSettings,
    attacks: dict[str, LogitsAttack],
    deployment: Deployment,
    eps: float,
) -> tuple[Accuracy, ...]:
    """The questions to one client: the deployment under every attack, and each branch under the main attack."""
    asked = [Accuracy(deployment)]
    for label, attack in attacks.items():
        limit = settings.subset if isinstance(attack, EXPENSIVE) else None
        radius = checklist.radius(attack, eps) if settings.checks else None
        asked.append(Accuracy(deployment, label, attack, settings.adaptive, limit, radius))
    label, attack = next(iter(attacks.items()))
    if not isinstance(attack, EXPENSIVE):
        others = [branch for branch in branches if branch is not deployment]
        asked += [Accuracy(branch, label, attack) for branch in others]
    return tuple(asked)


def _checks(
    prepared: PreparedExperiment,
    state: ServerState,
    execute: Execute,
    settings: EvaluationSettings,
    attacks: Mapping[str, LogitsAttack],
    deployments: Mapping[str, Deployment],
    printed: list[Answers],
) -> list[CheckRecord]:
    """The check-list of the printed numbers. It asks clients again, after their numbers of images are known."""
    eps = threat_eps(prepared)
    deployed = {client: deployment_name(deployment) for client, deployment in deployments.items()}
    available = {answer.client: len(answer.correct[f"clean@{deployed[answer.client]}"]) for answer in printed}
    share = checklist.shares(available)

    def questions(member: Member) -> tuple[Question, ...]:
        images = share.get(member.id, 0)
        return checklist.questions(deployments[member.id], attacks, eps, images) if images else ()

    measured, _ = collect_answers(prepared, state, "test", questions, execute, settings.samples)
    first = {answer.client: answer.correct for answer in printed}
    answers = [replace(answer, correct=first[answer.client] | answer.correct) for answer in measured]
    main = next(iter(attacks))
    columns_of = {"ra" if label == main else f"ra[{label}]": (label, attack) for label, attack in attacks.items()}
    classes = len(prepared.outline.classes)
    checks = checklist.judge(Evidence(answers, deployed), columns_of, eps, classes, checklist.IMAGES)
    return checks + _branches_not_judged(prepared, attacks[main], deployed)


def _branches_not_judged(
    prepared: PreparedExperiment, main: LogitsAttack, deployed: Mapping[str, str]
) -> list[CheckRecord]:
    """A line for each printed robust accuracy of a branch that does not predict."""
    if isinstance(main, EXPENSIVE):
        return []
    others = [branch.value for branch in prepared.plan.method.branches if {branch.value} != set(deployed.values())]
    return [
        check_line(
            "the branch that does not predict is checked",
            None,
            f"check it with --predict {branch}",
            column=f"ra@{branch}",
        )
        for branch in others
    ]


def threat_eps(prepared: PreparedExperiment) -> float:
    """ε of the run's threat model; your own attack gets it from the config."""
    return _eps(prepared.experiment, prepared.adversary)


def _eps(experiment: Experiment, adversary: LogitsAttack) -> float:
    known = epsilon(adversary)
    return experiment.attack.eps if known is None else known


def collect_answers(
    prepared: PreparedExperiment,
    state: ServerState,
    part: Literal["validation", "test"],
    questions: Callable[[Member], tuple[Question, ...]],
    execute: Execute,
    limit: int | None = None,
) -> tuple[list[Answers], dict[str, str]]:
    """Every client's answers to its questions, in the order of the clients, and why other clients did not answer.

    A client without a question is not asked. A missing answer is an error, unless other clients did answer and this is
    a validation or `prepared` is forgiving. A forgiving test asks clients that did not answer once more: it is the last
    time that they are asked, and a node that is slow or was cut off for a moment would have no result at all.
    """
    asked = {member.id: questions(member) for member in prepared.plan.members}
    jobs = [Evaluate(client, state.personal[client], part, each, limit) for client, each in asked.items() if each]
    round_ = round_of(state, prepared.plan)
    if not prepared.forgiving:  # the deadline is for training jobs; an evaluation has none
        round_ = replace(round_, deadline_seconds=None)
    forgiving = prepared.forgiving or part == "validation"
    answers, missing = _ask(execute, round_, jobs, forgiving)
    if missing and prepared.forgiving and part == "test":
        more, missing = _ask(execute, round_, [job for job in jobs if job.client in missing], forgiving)
        answers |= more
    if missing and not (forgiving and answers):
        client, cause = next(iter(missing.items()))
        raise FederationError(f"client {client!r} could not be evaluated: {cause}")
    return [answers[job.client] for job in jobs if job.client in answers], missing


def _ask(
    execute: Execute, round_: Round, jobs: list[Evaluate], forgiving: bool
) -> tuple[dict[str, Answers], dict[str, str]]:
    """Answers by client, and why the others have none; unless `forgiving`, the first missing answer ends it."""
    answers: dict[str, Answers] = {}
    missing: dict[str, str] = {}
    by_client = {job.client: job for job in jobs}
    for result in in_order(execute(round_, jobs), list(by_client), round_.number):
        job = by_client[result.client]
        objection = result.cause if isinstance(result, Failure) else _unusable(result, job.questions, job.limit)
        if objection is not None:
            missing[result.client] = objection
            if not forgiving:
                break
        elif isinstance(result, Answers):
            answers[result.client] = result
    return answers, missing


def _unusable(result: Result, questions: tuple[Question, ...], limit: int | None) -> str | None:
    """Why a result does not answer these questions; None if it does."""
    if not isinstance(result, Answers):
        return f"got {type(result).__name__}; expected Answers. Check the executor's program."
    names = {name for question in questions for name in question.names}
    if odd := sorted(result.correct.keys() ^ names):
        return f"got answers that {'lack' if odd[0] in names else 'include'} {odd[0][:100]!r}; expected {len(names)}."
    samples = max(len(answer) for answer in result.correct.values())
    if limit is not None and samples > limit:
        return f"got answers for {samples} samples; expected at most {limit}."
    for question in questions:
        expected = samples if question.limit is None else min(samples, question.limit)
        for name in question.names:
            if len(result.correct[name]) != expected:
                return f"got {len(result.correct[name])} answers to {name}; expected {expected}, one for each sample."
    return None


def main_label(experiment: Experiment) -> str:
    """The name of the config's attack in records."""
    name = experiment.attack.name
    return f"{name}-{experiment.attack.steps}" if name in ("pgd", "mia") else name


def origin_of(prepared: PreparedExperiment) -> dict[str, Any]:
    """The origin that every record states: method and its branch, attack, ε and threat model, seed, versions."""
    experiment = prepared.experiment
    return {
        "key": experiment.key(),
        "method": prepared.plan.method.name,
        "data": experiment.data.name,
        "attack": main_label(experiment),
        "eps": epsilon(prepared.adversary),
        "threat": experiment.attack.threat,
        "predict": prepared.plan.method.predict.value,
        "seed": experiment.run.seed,
        "precision": precision_name(prepared.precision),
        "versions": versions(),
        **malice.malice_record(experiment, prepared.plan.members),
        **accountant.privacy_record(experiment, prepared.plan),
    }


def _described(prepared: PreparedExperiment, attack: LogitsAttack) -> dict[str, Any]:
    value = attack.attack if isinstance(attack, Untargeted) else attack
    return {"eps": epsilon(attack), "settings": described(attack), "in_config": value == prepared.attack}


def _without_checks(correct: Tensors) -> Tensors:
    return {name: answer for name, answer in correct.items() if not name.startswith("check ")}
