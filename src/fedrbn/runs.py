"""Train an experiment in a run directory, continue one that was interrupted, evaluate what was trained."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

from torch import nn

from fedrbn.assembly import Assembly, assemble
from fedrbn.config import Experiment
from fedrbn.cost import cost_of
from fedrbn.data.samples import DataSet, Federation
from fedrbn.evaluation import Accuracy, deployment_name
from fedrbn.examination import Examination, ask_all, examine, facts, main_label
from fedrbn.federated.server import federate, initial_state
from fedrbn.results import validation_summary
from fedrbn.storage import Best, RunDirectory, StorageError
from fedrbn.types import Execute, Job, Member, Result, Role, Round, ServerState


class Watcher(Protocol):
    """Told of what happens in a run while it happens; the command line shows it."""

    def training(self, assembly: Assembly, finished: int) -> None:
        """Training starts, with so many rounds finished before."""

    def answered(self, result: Result) -> None:
        """A client has answered."""

    def round_finished(self, record: dict[str, Any]) -> None:
        """A round is finished; the record is the line written for it."""

    def evaluating(self, clients: int) -> None:
        """The evaluation of so many clients on their test data starts."""


def run(
    experiment: Experiment,
    path: Path | str,
    *,
    network: nn.Module | None = None,
    data: DataSet | Federation | None = None,
    force: bool = False,
    watcher: Watcher | None = None,
) -> dict[str, Any]:
    """Train and evaluate an experiment in a new run directory; returns the record of the evaluation.

    `network` and `data`, if given, are used instead of what the experiment names. Then nothing on disk can rebuild
    them: whoever resumes, evaluates or loads the run passes them again.
    """
    assembly = assemble(experiment, network, data)
    directory = RunDirectory.create(Path(path), assembly.experiment, force=force)
    directory.describe(assembly.plan.members, assembly.federation.classes, assembly.federation.image_shape)
    return _finish(assembly, directory, watcher)


def resume(
    path: Path | str,
    *,
    network: nn.Module | None = None,
    data: DataSet | Federation | None = None,
    workers: int | None = None,
    watcher: Watcher | None = None,
) -> dict[str, Any]:
    """Continue an interrupted run from its last checkpoint.

    It ends with exactly the weights and metrics of a run that was never interrupted, because all randomness comes
    from (seed, round, client). A finished run returns its record at once.
    """
    directory = RunDirectory.open(Path(path))
    finished = directory.records("evaluations.jsonl")
    if finished:
        return finished[0]
    assembly = assemble(_with_workers(directory.experiment(), workers), network, data)
    directory.describe(assembly.plan.members, assembly.federation.classes, assembly.federation.image_shape)
    return _finish(assembly, directory, watcher)


def evaluate(
    path: Path | str,
    examination: Examination | None = None,
    *,
    network: nn.Module | None = None,
    data: DataSet | Federation | None = None,
    workers: int | None = None,
    watcher: Watcher | None = None,
) -> dict[str, Any]:
    """Evaluate a trained run again, by default as at the end of training; adds a record and returns it."""
    directory = RunDirectory.open(Path(path))
    if not directory.records("evaluations.jsonl"):  # the first record is the one that ends the training
        raise StorageError(f"got run {path}, which is not finished; expected a trained one. Continue it with --resume.")
    assembly = assemble(_with_workers(directory.experiment(), workers), network, data)
    chosen = directory.checkpoint("best") or directory.checkpoint("last")
    if chosen is None:
        raise StorageError(f"got run {path} without a checkpoint; expected a trained one. Train it again with --force.")
    with directory.locked(), assembly.executor() as execute:
        directory.recover()
        return _evaluate(assembly, directory, chosen.state, _watched(execute, watcher), examination, watcher)


def _finish(assembly: Assembly, directory: RunDirectory, watcher: Watcher | None) -> dict[str, Any]:
    with directory.locked():
        directory.recover()
        with assembly.executor(directory.clients) as bare:
            execute = _watched(bare, watcher)
            state = _train(assembly, directory, execute, watcher)
            return _evaluate(assembly, directory, state, execute, None, watcher)


def _train(assembly: Assembly, directory: RunDirectory, execute: Execute, watcher: Watcher | None) -> ServerState:
    """Run the rounds that are left; returns the state that validation chose."""
    checkpoint = directory.checkpoint("last")
    state = checkpoint.state if checkpoint else initial_state(assembly.net, assembly.plan)
    best = checkpoint.best if checkpoint else None
    if watcher:
        watcher.training(assembly, state.round)
    origin, started = facts(assembly), time.perf_counter()
    for current, report in federate(state, assembly.plan, execute):
        state = current
        record: dict[str, Any] = {**origin, "round": state.round, "lr": report.lr, "clients": report.clients}
        if _validation_due(assembly, state.round):
            record["validation"] = _validate(assembly, state, execute)
            score = record["validation"]["score"]
            better = best is None or score is None or score > best.score
            if better and assembly.plan.may_choose(state.round):
                best = Best(state.round, score or 0.0)
                directory.save("best", state, best)
        record["seconds"] = time.perf_counter() - started
        started = time.perf_counter()
        directory.append("rounds.jsonl", record)
        directory.save("last", state, best)
        if watcher:
            watcher.round_finished(record)
    chosen = directory.checkpoint("best")
    return chosen.state if chosen else state


def _validation_due(assembly: Assembly, number: int) -> bool:
    return number % assembly.experiment.train.validate_every == 0 or number == assembly.plan.rounds


def _validate(assembly: Assembly, state: ServerState, execute: Execute) -> dict[str, float | None]:
    """Score the state on validation data, if there is any: RA of AT users and SA of ST users, as in the paper."""
    plan = assembly.plan
    if not any(len(client.validation) for client in assembly.federation.clients):
        return validation_summary([], plan.members, {})
    label = main_label(assembly.experiment)
    branches = {member.id: plan.predicting_branch(state, member) for member in plan.members}

    def question(member: Member) -> tuple[Accuracy]:
        attack = assembly.adversary if member.role is Role.AT else None
        return (Accuracy(branches[member.id], label, attack),)

    keys = {
        member.id: f"{label if member.role is Role.AT else 'clean'}@{deployment_name(branches[member.id])}"
        for member in plan.members
    }
    answers = ask_all(assembly, state, "validation", question, execute)
    return validation_summary(answers, plan.members, keys)


def _evaluate(
    assembly: Assembly,
    directory: RunDirectory,
    state: ServerState,
    execute: Execute,
    examination: Examination | None,
    watcher: Watcher | None,
) -> dict[str, Any]:
    """Examine every client on its test data; writes the record and the per-sample answers."""
    if watcher:
        watcher.evaluating(len(assembly.plan.members))
    record, answers = examine(assembly, state, execute, examination or Examination())
    record["cost"] = cost_of(assembly)
    number = len(directory.records("evaluations.jsonl"))
    directory.save_tensors(f"answers/{number}.safetensors", answers)
    directory.append("evaluations.jsonl", record)
    return record


def _watched(execute: Execute, watcher: Watcher | None) -> Execute:
    if watcher is None:
        return execute
    tell = watcher.answered

    def watched(round_: Round, jobs: Iterable[Job]) -> Iterator[Result]:
        for result in execute(round_, jobs):
            tell(result)
            yield result

    return watched


def _with_workers(experiment: Experiment, workers: int | None) -> Experiment:
    if workers is None:
        return experiment
    return experiment.model_copy(update={"run": experiment.run.model_copy(update={"workers": workers})})
