"""Train an experiment in a run directory, continue one that was interrupted, evaluate what was trained."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from torch import nn

from fedrbn.config import Experiment
from fedrbn.cost.count import cost_of
from fedrbn.data.samples import DataSet, Federation
from fedrbn.errors import StorageError
from fedrbn.evaluation.accuracy import Accuracy, deployment_name
from fedrbn.evaluation.protocol import EvaluationSettings, ask_all, evaluate_clients, main_label, origin_of
from fedrbn.evaluation.records import EvaluationRecord, RoundRecord
from fedrbn.evaluation.summary import validation_summary
from fedrbn.federated.assemble import Assembly, PreparedExperiment, assemble
from fedrbn.federated.divergence import diverging, first_losses_of
from fedrbn.federated.prediction import selecting_branch
from fedrbn.federated.protocol import Execute, Job, Result, Round, ServerState
from fedrbn.federated.server import initial_state, misfit, play_round
from fedrbn.federated.training.memory import forgotten, missing
from fedrbn.federated.uploads.collection import TooFewClientsError, listed
from fedrbn.federated.uploads.validation import malformed
from fedrbn.hardware import one_thread
from fedrbn.runs.checkpoint import Best, Checkpoint
from fedrbn.runs.directory import RunDirectory
from fedrbn.runs.records import evaluations, rounds
from fedrbn.types import Member, Role


class Watcher(Protocol):
    """Told of what happens in a run while it happens; the command line shows it."""

    def training(self, assembly: Assembly, finished: int) -> None:
        """Training starts, with so many rounds finished before."""

    def answered(self, result: Result) -> None:
        """A client has answered."""

    def round_finished(self, record: RoundRecord) -> None:
        """A round is finished; the record is the line written for it."""

    def evaluating(self, clients: int) -> None:
        """The evaluation of so many clients on their test data starts."""


Revise: TypeAlias = Callable[[PreparedExperiment, ServerState], tuple[PreparedExperiment, ServerState]]
"""What may change before a round and before the evaluation: who takes part, and so what the server remembers."""


def unchanged(prepared: PreparedExperiment, state: ServerState) -> tuple[PreparedExperiment, ServerState]:
    """The same clients from the first round to the last."""
    return prepared, state


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
    with RunDirectory.creating(Path(path), assembly.experiment, force=force) as directory:
        directory.recover()
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
    finished = evaluations(directory)
    if finished:
        return finished[0].to_json()
    with directory.locked():
        directory.recover()  # first: what cannot be continued is refused before the data are loaded
        assembly = assemble(_with_workers(directory.experiment(), workers), network, data)
        return _finish(assembly, directory, watcher)


def evaluate(
    path: Path | str,
    settings: EvaluationSettings | None = None,
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
    with directory.locked():
        directory.tidy()  # first: what cannot be used is refused before the data are loaded
        chosen = directory.checkpoint("best") or directory.checkpoint("last")
        if chosen is None:
            raise StorageError(
                f"got run {path} without a checkpoint; expected a trained one. Train it again with --force."
            )
        assembly = assemble(_with_workers(directory.experiment(), workers), network, data)
        with one_thread(), assembly.executor() as execute:
            watched = _watched(execute, watcher)
            return _evaluate(assembly, directory, chosen.state, watched, settings, watcher).to_json()


def _finish(assembly: Assembly, directory: RunDirectory, watcher: Watcher | None) -> dict[str, Any]:
    """Train what is left and evaluate. The caller holds the directory's lock and has recovered it."""
    last = directory.checkpoint("last")
    if last is not None and last.state.round < assembly.plan.schedule.rounds:
        _ensure_remembered(assembly, directory, last)
    directory.describe(assembly.plan.members, assembly.federation.classes, assembly.federation.image_shape)
    if watcher:
        watcher.training(assembly, last.state.round if last else 0)
    with assembly.executor(directory.clients) as execute:
        return train_and_evaluate(assembly, directory, _watched(execute, watcher), watcher)


def _ensure_remembered(assembly: Assembly, directory: RunDirectory, last: Checkpoint) -> None:
    """Refuse to continue where clients have lost what they remembered: the run would end with other weights.

    A checkpoint of a version that did not note the memory is held to what is certain: a client that has reported under
    a method whose clients remember has something of that round or a later one.
    """
    state, plan = last.state, assembly.plan
    if last.memory is None:
        roles = {member.id: member.role for member in plan.members}
        bound = {c: number for c, number in state.reported.items() if c in roles and plan.method.remembers(roles[c])}
        lost = forgotten(directory.clients, bound, state.round)
    else:
        lost = missing(directory.clients, last.memory, state.round)
    if lost:
        raise StorageError(f"got a run that stopped after round {state.round}, and {lost}")


def train_and_evaluate(
    prepared: PreparedExperiment,
    directory: RunDirectory,
    execute: Execute,
    watcher: Watcher | None = None,
    revise: Revise = unchanged,
) -> dict[str, Any]:
    """Run the rounds that are left, then evaluate the state that validation chose; returns the record of that.

    The caller holds the directory's lock and has recovered it. `revise` is asked before every round and
    before the evaluation. The server's own arithmetic takes one thread: more would spin against the workers.
    """
    with one_thread():
        prepared, state = _train(prepared, directory, execute, watcher, revise)
        return _evaluate(prepared, directory, state, execute, None, watcher).to_json()


def _train(
    prepared: PreparedExperiment, directory: RunDirectory, execute: Execute, watcher: Watcher | None, revise: Revise
) -> tuple[PreparedExperiment, ServerState]:
    """Run the rounds that are left; returns the state that validation chose, and the prepared as it was last."""
    checkpoint = directory.checkpoint("last")
    state = checkpoint.state if checkpoint else initial_state(prepared.net, prepared.plan)
    best = checkpoint.best if checkpoint else None
    origin, started = origin_of(prepared), time.perf_counter()
    first_losses = first_losses_of(record.losses for record in rounds(directory))
    while True:
        prepared, state = revise(prepared, state)
        if checkpoint and state.round == checkpoint.state.round:
            _ensure_fit(prepared, state, directory.path)
        if state.round >= prepared.plan.schedule.rounds:
            break
        try:
            state, report = play_round(state, prepared.plan, execute)
        except TooFewClientsError as error:
            directory.append("stops.jsonl", {**origin, "round": error.number + 1, "failures": listed(error.failures)})
            raise
        line: dict[str, Any] = {**origin, "round": state.round, "lr": report.lr, "clients": report.clients}
        line |= prepared.remarks(state)
        if report.failures:
            line["failures"] = listed(report.failures)
        alarm = diverging(report, first_losses)
        if alarm:
            line["warning"] = alarm
        if _validation_due(prepared, state.round):
            line["validation"] = _validate(prepared, state, execute)
            score = line["validation"]["score"]
            better = best is None or score is None or score > best.score
            if better and prepared.plan.schedule.may_choose(state.round):
                best = Best(state.round, score or 0.0)
                directory.save("best", state, best)
        record = RoundRecord.from_json({**line, "seconds": time.perf_counter() - started})
        started = time.perf_counter()
        first_losses = first_losses_of([first_losses, record.losses])
        directory.append("rounds.jsonl", record.to_json())
        directory.save("last", state, best)
        if watcher:
            watcher.round_finished(record)
    chosen = directory.checkpoint("best")
    return prepared, _with_latecomers(directory, chosen, state) if chosen else state


def _with_latecomers(directory: RunDirectory, chosen: Checkpoint, last: ServerState) -> ServerState:
    """The chosen state, with the batch norm of clients that joined after it as it was last."""
    state = chosen.state
    if state.personal.keys() == last.personal.keys():
        return state
    merged = replace(state, personal=last.personal | state.personal, reported=last.reported | state.reported)
    directory.save("best", merged, chosen.best)
    return merged


def _ensure_fit(prepared: PreparedExperiment, state: ServerState, path: Path) -> None:
    wrong = misfit(state, prepared.net, prepared.plan)
    if wrong:
        raise StorageError(
            f"got the checkpoint of {path} with {wrong}; expected that of this experiment. It is of another network or "
            "federation: give the same network and data as when the run began, or start anew with --force."
        )


def _validation_due(prepared: PreparedExperiment, number: int) -> bool:
    return number % prepared.experiment.train.validate_every == 0 or number == prepared.plan.schedule.rounds


def _validate(prepared: PreparedExperiment, state: ServerState, execute: Execute) -> dict[str, float | None]:
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
    answers, _ = ask_all(prepared, state, "validation", question, execute)
    return validation_summary(answers, plan.members, keys)


def _evaluate(
    prepared: PreparedExperiment,
    directory: RunDirectory,
    state: ServerState,
    execute: Execute,
    settings: EvaluationSettings | None,
    watcher: Watcher | None,
) -> EvaluationRecord:
    """Examine every client on its test data; writes the record and the per-sample answers."""
    if watcher:
        watcher.evaluating(len(prepared.plan.members))
    evaluated, answers = evaluate_clients(prepared, state, execute, settings or EvaluationSettings())
    added = {"cost": cost_of(prepared), **prepared.remarks(state)}
    record = EvaluationRecord.from_json(evaluated.to_json() | added)
    number = len(directory.records("evaluations.jsonl"))
    directory.save_tensors(f"answers/{number}.safetensors", answers)
    directory.append("evaluations.jsonl", record.to_json())
    return record


def _watched(execute: Execute, watcher: Watcher | None) -> Execute:
    if watcher is None:
        return execute
    tell = watcher.answered

    def watched(round_: Round, jobs: Iterable[Job]) -> Iterator[Result]:
        for result in execute(round_, jobs):
            if malformed(result) is None:
                tell(result)
            yield result

    return watched


def _with_workers(experiment: Experiment, workers: int | None) -> Experiment:
    if workers is None:
        return experiment
    return experiment.model_copy(update={"run": experiment.run.model_copy(update={"workers": workers})})
