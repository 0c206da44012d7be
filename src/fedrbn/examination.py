"""What is asked of every client at the end of a run or by `fedrbn evaluate`, and the record of the answers."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Literal

from fedrbn.assembly import Assembly
from fedrbn.attacks import PGD, AutoAttack, LocalSearch, LogitsAttack, Untargeted, attack_named, epsilon
from fedrbn.config import Experiment
from fedrbn.diagnosis import Diagnosis, as_records, judge
from fedrbn.evaluation import Accuracy, Deployment, Question, deployment_name
from fedrbn.federated.server import FederationError, in_order
from fedrbn.results import columns, summary
from fedrbn.types import Answers, Evaluate, Execute, Failure, Member, ServerState, Tensors

EXPENSIVE = (AutoAttack, LocalSearch)
"""Attacks that cost thousands of passes for each image: they are tried on a subset."""


@dataclass(frozen=True)
class Examination:
    """The choices of an evaluation."""

    attacks: tuple[str, ...] = ()
    """Attacks by text, as in fedrbn.attacks.named; without any it is the attack of the run's config."""
    deployment: Deployment | None = None
    """How the networks are deployed; None is the branch that each client predicts with."""
    adaptive: bool = True
    """Also attack every branch of a dual network and their mean loss, and report the worst case per sample."""
    samples: int | None = None
    """Test samples per client; None uses all."""
    subset: int = 10
    """Test samples per client for attacks that cost thousands of passes."""
    checks: bool = False
    """Also measure the warning signs of a flattering evaluation."""


def examine(
    assembly: Assembly, state: ServerState, execute: Execute, examination: Examination
) -> tuple[dict[str, Any], Tensors]:
    """Ask every client; returns the record for tables and the answer to each question for each sample."""
    plan, experiment = assembly.plan, assembly.experiment
    attacks = {text: attack_named(text) for text in examination.attacks}
    if not attacks:
        attacks = {main_label(experiment): assembly.adversary}
    deployments: dict[str, Deployment] = {
        member.id: examination.deployment or plan.predicting_branch(state, member) for member in plan.members
    }

    def questions(member: Member) -> tuple[Question, ...]:
        return _questions(assembly, examination, attacks, deployments[member.id])

    answers = list(ask_all(assembly, state, "test", questions, execute, examination.samples))
    main = next(iter(attacks))
    deployed = {client: deployment_name(deployment) for client, deployment in deployments.items()}
    plain = [Answers(a.client, a.round, _without_checks(a.correct)) for a in answers]
    record = {
        **facts(assembly),
        "attack": main,
        "attacks": {label: _described(assembly, attack) for label, attack in attacks.items()},
        "deployment": deployment_name(examination.deployment or plan.method.predict),
        "part": "test",
        "round": state.round,
        "labels": assembly.federation.labels,
        "samples_digest": _digest(assembly),
        **summary(plain, plan.members, deployed, main),
    }
    if examination.checks and isinstance(assembly.attack, PGD):
        record["checks"] = as_records(judge(answers, len(assembly.federation.classes)))
    stored = {
        f"{answer.client}/{column}": right
        for answer in plain
        for column, right in columns(answer.correct, deployed[answer.client], main="").items()  # every attack by name
    }
    return record, stored


def _questions(
    assembly: Assembly, examination: Examination, attacks: dict[str, LogitsAttack], deployment: Deployment
) -> tuple[Question, ...]:
    """What one client is asked: the deployment under every attack, and each branch under the main one."""
    asked: list[Question] = [Accuracy(deployment)]
    for label, attack in attacks.items():
        limit = examination.subset if isinstance(attack, EXPENSIVE) else None
        asked.append(Accuracy(deployment, label, attack, examination.adaptive, limit))
    label, attack = next(iter(attacks.items()))
    if not isinstance(attack, EXPENSIVE):
        others = [branch for branch in assembly.plan.method.branches if branch is not deployment]
        asked += [Accuracy(branch, label, attack) for branch in others]
    if examination.checks and isinstance(assembly.attack, PGD):
        asked.append(Diagnosis(deployment, assembly.attack))
    return tuple(asked)


def ask_all(
    assembly: Assembly,
    state: ServerState,
    part: Literal["validation", "test"],
    questions: Callable[[Member], tuple[Question, ...]],
    execute: Execute,
    limit: int | None = None,
) -> Iterator[Answers]:
    """Every client's answers to its questions, in the order of the clients."""
    jobs = [Evaluate(m.id, state.personal[m.id], part, questions(m), limit) for m in assembly.plan.members]
    for result in in_order(execute(assembly.plan.round(state), jobs), [job.client for job in jobs]):
        if isinstance(result, Failure):
            raise FederationError(f"client {result.client!r} could not be evaluated: {result.cause}")
        if isinstance(result, Answers):
            yield result


def main_label(experiment: Experiment) -> str:
    """How records name the attack of the config."""
    name = experiment.attack.name
    return f"{name}-{experiment.attack.steps}" if name in ("pgd", "mia") else name


def facts(assembly: Assembly) -> dict[str, Any]:
    """What every record says of its origin: method and its branch, attack, ε and threat model, seed, versions."""
    experiment = assembly.experiment
    return {
        "key": experiment.key(),
        "method": assembly.plan.method.name,
        "data": experiment.data.name,
        "attack": main_label(experiment),
        "eps": epsilon(assembly.adversary),
        "threat": experiment.attack.threat,
        "predict": assembly.plan.method.predict.value,
        "seed": experiment.run.seed,
        "versions": {name: version(name) for name in ("fedrbn", "torch", "numpy")}
        | {"python": platform.python_version()},
    }


def _described(assembly: Assembly, attack: LogitsAttack) -> dict[str, Any]:
    value = attack.attack if isinstance(attack, Untargeted) else attack
    return {"eps": epsilon(attack), "settings": repr(value), "in_config": value == assembly.attack}


def _without_checks(correct: Tensors) -> Tensors:
    return {name: answer for name, answer in correct.items() if not name.startswith("check ")}


def _digest(assembly: Assembly) -> str:
    """Twelve hex digits that name the test samples of all clients and their order."""
    hasher = hashlib.sha256()
    for client in assembly.federation.clients:
        hasher.update(client.id.encode())
        hasher.update(client.test.images.numpy().tobytes())
        hasher.update(client.test.labels.numpy().tobytes())
    return hasher.hexdigest()[:12]
