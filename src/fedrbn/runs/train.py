"""Train an experiment in a run directory, continue one that was interrupted, evaluate what was trained."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

from fedrbn.config import Experiment
from fedrbn.cost.count import cost_of
from fedrbn.data.samples import DataSet, Federation
from fedrbn.errors import HardwareError, StorageError
from fedrbn.evaluation.accuracy import Accuracy, deployment_name
from fedrbn.evaluation.protocol import EvaluationSettings, ask_all, evaluate_clients, main_label, origin_of
from fedrbn.evaluation.records import EvaluationRecord, RoundRecord
from fedrbn.evaluation.results import Evaluation
from fedrbn.evaluation.summary import validation_summary
from fedrbn.federated.assemble import Assembly, PreparedExperiment, assemble
from fedrbn.federated.divergence import diverging, first_losses_of
from fedrbn.federated.prediction import selecting_branch
from fedrbn.federated.privacy.accountant import privacy_record, releases_again
from fedrbn.federated.protocol import Execute, Job, Result, Round, ServerState
from fedrbn.federated.server import initial_state, misfit, play_round
from fedrbn.federated.training.memory import forgotten, missing
from fedrbn.federated.uploads.collection import TooFewClientsError, listed
from fedrbn.federated.uploads.validation import malformed
from fedrbn.fleet.replanning import duties_record
from fedrbn.hardware import one_thread
from fedrbn.nets import Source
from fedrbn.runs import rounds_csv
from fedrbn.runs.checkpoint import Best, Checkpoint
from fedrbn.runs.directory import RunDirectory
from fedrbn.runs.duties import with_next_duties
from fedrbn.runs.extension import extend, rewrite_origin
from fedrbn.runs.overview import ensure_ready
from fedrbn.runs.records import ATTEMPTS, evaluations, repeated, rounds
from fedrbn.runs.recovery import recover, tidy
from fedrbn.runs.watcher import OnRound, Watcher, telling
from fedrbn.types import Member, Role

Revise: TypeAlias = Callable[[PreparedExperiment, ServerState], tuple[PreparedExperiment, ServerState]]
"""What may change before a round and before the evaluation: who takes part, and so what the server remembers."""


def unchanged(prepared: PreparedExperiment, state: ServerState) -> tuple[PreparedExperiment, ServerState]:
    """The same clients from the first round to the last."""
    return prepared, state


def run(
    experiment: Experiment,
    path: Path | str,
    *,
    network: Source | None = None,
    data: DataSet | Federation | None = None,
    force: bool = False,
    progress: bool = False,
    on_round: OnRound | None = None,
    watcher: Watcher | None = None,
) -> Evaluation:
    """Train and evaluate an experiment in a new run directory; returns the record of the evaluation.

    `network` and `data`, if given, are used instead of what the experiment names; the network may also be its class or
    another function that makes it. Then nothing on disk can rebuild them: whoever resumes, evaluates or loads the run
    passes them again.

    `progress=True` shows on stderr what the command line shows. `on_round` is called after every round with its
    `RoundRecord`: `record.round`, `record.losses` by client, `record.validated("score")`, `record.seconds` and so on.
    """
    assembly = assemble(experiment, network, data)
    ensure_ready(assembly)
    if watcher is None and not progress:  # else the overview says so
        for hint in assembly.hints:
            warnings.warn(hint, stacklevel=2)
    with (
        RunDirectory.creating(Path(path), assembly.experiment, force=force) as directory,
        telling(experiment.method.name, progress=progress, on_round=on_round, watcher=watcher) as told,
    ):
        recover(directory)
        return Evaluation(_finish(assembly, directory, told))


def resume(
    path: Path | str,
    *,
    network: Source | None = None,
    data: DataSet | Federation | None = None,
    rounds: int | None = None,
    workers: int | None = None,
    progress: bool = False,
    on_round: OnRound | None = None,
    watcher: Watcher | None = None,
) -> Evaluation:
    """Continue an interrupted run from its last checkpoint.

    It ends with exactly the weights and metrics of a run that was never interrupted, because all randomness comes
    from (seed, round, client). A finished run returns its record at once. With `rounds` a run, finished or not, goes on
    to that many, as if it had been started with them; one whose first rounds would have been others is refused.
    """
    directory = RunDirectory.open(Path(path))
    if rounds is None and (finished := evaluations(directory)):
        return Evaluation(finished[0].to_json())
    with directory.locked():
        if rounds is not None:
            extend(directory, rounds)
            if finished := evaluations(directory):
                return Evaluation(finished[0].to_json())
        recover(directory)  # first: what cannot be continued is refused before the data are loaded
        assembly = assemble(_with_workers(directory.experiment(), workers), network, data)
        assembly = _as_recorded(assembly, directory)
        if rounds is not None:
            rewrite_origin(directory, assembly)
        title = directory.experiment().method.name
        with telling(title, progress=progress, on_round=on_round, watcher=watcher) as told:
            return Evaluation(_finish(assembly, directory, told))


def evaluate(
    path: Path | str,
    settings: EvaluationSettings | None = None,
    *,
    network: Source | None = None,
    data: DataSet | Federation | None = None,
    workers: int | None = None,
    progress: bool = False,
    watcher: Watcher | None = None,
) -> Evaluation:
    """Evaluate a trained run again, by default as at the end of training; adds a record and returns it."""
    directory = RunDirectory.open(Path(path))
    if not directory.records("evaluations.jsonl"):  # the first record is the one that ends the training
        raise StorageError(f"got run {path}, which is not finished; expected a trained one. Continue it with --resume.")
    with directory.locked():
        tidy(directory)  # first: what cannot be used is refused before the data are loaded
        chosen = directory.checkpoint("best") or directory.checkpoint("last")
        if chosen is None:
            raise StorageError(
                f"got run {path} without a checkpoint; expected a trained one. Train it again with --force."
            )
        assembly = assemble(_with_workers(directory.experiment(), workers), network, data)
        prepared = with_next_duties(assembly, directory)
        telling_all = telling("evaluate", progress=progress, watcher=watcher)
        with telling_all as told, one_thread(), assembly.executor() as execute:
            watched = _watched(execute, told)
            return Evaluation(_evaluate(prepared, directory, chosen.state, watched, settings, told).to_json())


def _as_recorded(assembly: Assembly, directory: RunDirectory) -> Assembly:
    """The assembly with the precision of the rounds that are done: `auto` could decide otherwise on this machine."""
    recorded = _trained_in(directory)
    if recorded is None:
        return assembly
    kept = replace(assembly, trained_in=recorded)
    try:
        _ = kept.precision
    except HardwareError as error:
        raise HardwareError(
            f"got run {directory.path}, trained in {recorded} so far, on a device that cannot compute in it; expected "
            "one that can, because the run would end with other weights. Continue it there, or train anew with --force."
        ) from error
    return kept


def _trained_in(directory: RunDirectory) -> Literal["bfloat16", "float32"] | None:
    """What the rounds of a run were computed in, as its records say; None if none does."""
    said = [record.precision for record in rounds(directory) if record.precision]
    return None if not said else "bfloat16" if said[-1] == "bfloat16" else "float32"


def _finish(assembly: Assembly, directory: RunDirectory, watcher: Watcher | None) -> dict[str, Any]:
    """Train what is left and evaluate. The caller holds the directory's lock and has recovered it."""
    last = directory.checkpoint("last")
    if last is not None and last.state.round < assembly.plan.schedule.rounds:
        _ensure_remembered(assembly, directory, last)
    directory.describe(assembly.plan.members, assembly.federation.classes, assembly.federation.image_shape)
    if watcher:
        watcher.training(assembly, last.state.round if last else 0)
    with assembly.executor(directory.clients) as execute:
        return train_and_evaluate(assembly, directory, _watched(execute, watcher), watcher, _replanned(directory))


def _replanned(directory: RunDirectory) -> Revise:
    """Duties that change from round to round, if the experiment says so; the clients stay the same."""

    def revise(prepared: PreparedExperiment, state: ServerState) -> tuple[PreparedExperiment, ServerState]:
        revised = with_next_duties(prepared, directory)
        if revised is not prepared:
            directory.describe(revised.plan.members, revised.outline.classes, revised.outline.image_shape)
        return revised, state

    return revise


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
    rounds_csv.write(directory, rounds(directory), _roles(prepared))
    while True:
        prepared, state = revise(prepared, state)
        if checkpoint and state.round == checkpoint.state.round:
            _ensure_fit(prepared, state, directory.path)
        if state.round >= prepared.plan.schedule.rounds:
            break
        _note_attempt(prepared, directory, state)
        try:
            state, report = play_round(state, prepared.plan, execute)
        except TooFewClientsError as error:
            directory.append("stops.jsonl", {**origin, "round": error.number + 1, "failures": listed(error.failures)})
            raise
        line: dict[str, Any] = {**origin, "round": state.round, "lr": report.lr, "clients": report.clients}
        line |= prepared.remarks(state) | duties_record(prepared.experiment, prepared.plan.members)
        line |= _spent(prepared, directory, state.round)
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
        rounds_csv.add(directory, record, _roles(prepared))
        directory.save("last", state, best)
        if watcher:
            watcher.round_finished(record)
    chosen = directory.checkpoint("best")
    return prepared, _with_latecomers(directory, chosen, state) if chosen else state


def _note_attempt(prepared: PreparedExperiment, directory: RunDirectory, state: ServerState) -> None:
    """Note that clients are about to be asked: if the round is repeated, fresh noise is a further release."""
    if releases_again(prepared.experiment):
        directory.append(ATTEMPTS, {"round": state.round + 1})


def _spent(prepared: PreparedExperiment, directory: RunDirectory, finished: int) -> dict[str, Any]:
    """What a client has spent of its privacy when all rounds are done, where rounds that are repeated cost more."""
    if not releases_again(prepared.experiment):
        return {}
    return privacy_record(prepared.experiment, prepared.plan, repeated(directory, finished))


def _with_latecomers(directory: RunDirectory, chosen: Checkpoint, last: ServerState) -> ServerState:
    """The chosen state, with the batch norm of clients that joined after it as it was last."""
    state = chosen.state
    if state.personal.keys() == last.personal.keys():
        return state
    merged = replace(state, personal=last.personal | state.personal, reported=last.reported | state.reported)
    directory.save("best", merged, chosen.best)
    return merged


def _roles(prepared: PreparedExperiment) -> dict[str, Role]:
    return {member.id: member.role for member in prepared.plan.members}


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
    added |= _spent(prepared, directory, len(rounds(directory)))
    trained_in = _trained_in(directory)
    if trained_in is not None:  # perhaps on another machine
        added["precision"] = trained_in
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
