"""Train an experiment in a run directory, continue one that was interrupted, evaluate what was trained."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedrbn.config import Experiment
from fedrbn.data.samples import DataSet, Federation
from fedrbn.errors import HardwareError, StorageError
from fedrbn.evaluation.protocol import EvaluationSettings, ensure_attacks
from fedrbn.evaluation.results import Evaluation
from fedrbn.federated.assemble import Assembly, assemble
from fedrbn.federated.executors.processes import end_if_importing
from fedrbn.federated.prepared_experiment import PreparedExperiment
from fedrbn.federated.protocol import Execute, Job, Result, Round, ServerState
from fedrbn.federated.training.memory import forgotten, missing
from fedrbn.federated.uploads.validation import malformed
from fedrbn.hardware import one_thread
from fedrbn.nets import NetworkSource
from fedrbn.runs.checkpoint import Checkpoint
from fedrbn.runs.directory import RunDirectory
from fedrbn.runs.duties import with_next_duties
from fedrbn.runs.evaluation_record import evaluate_and_record
from fedrbn.runs.extension import extend, rewrite_origin
from fedrbn.runs.overview import ensure_ready
from fedrbn.runs.records import evaluations, trained_in
from fedrbn.runs.recovery import recover, tidy
from fedrbn.runs.round_loop import Revise, train_and_evaluate
from fedrbn.runs.watcher import OnRound, Watcher, combined_watcher


def run(
    experiment: Experiment,
    path: Path | str,
    *,
    network: NetworkSource | None = None,
    data: DataSet | Federation | None = None,
    force: bool = False,
    progress: bool = False,
    on_round: OnRound | None = None,
    watcher: Watcher | None = None,
) -> Evaluation:
    """Train and evaluate an experiment in a new run directory; returns the record of the evaluation.

    `network` and `data`, if given, are used instead of what the experiment names; the network may also be its class or
    another function that makes it. Then nothing on disk can rebuild them: pass them again to resume, evaluate or load
    the run.

    `progress=True` shows on stderr what the command line shows. `on_round` is called after every round with its
    `RoundRecord`: `record.round`, `record.losses` by client, `record.validated("score")`, `record.seconds` and so on.
    """
    end_if_importing()
    assembly = assemble(experiment, network, data)
    ensure_ready(assembly)
    if watcher is None and not progress:  # otherwise the display has printed them
        for hint in assembly.hints:
            warnings.warn(hint, stacklevel=2)
    with (
        RunDirectory.creating(Path(path), assembly.experiment, force=force) as directory,
        combined_watcher(experiment.method.name, progress=progress, on_round=on_round, watcher=watcher) as combined,
    ):
        recover(directory)
        return Evaluation(_finish(assembly, directory, combined))


def resume(
    path: Path | str,
    *,
    network: NetworkSource | None = None,
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
    to that many, as if it had been started with them; it is refused if its first rounds would have been different.
    """
    end_if_importing()
    directory = RunDirectory.open(Path(path))
    if rounds is None and (finished := evaluations(directory)):
        return Evaluation(finished[0].to_json())
    with directory.locked():
        if rounds is not None:
            extend(directory, rounds)
            if finished := evaluations(directory):
                return Evaluation(finished[0].to_json())
        recover(directory)  # first, to refuse a run that cannot be continued before loading the data
        assembly = assemble(_with_workers(directory.experiment(), workers), network, data)
        assembly = _as_recorded(assembly, directory)
        if rounds is not None:
            rewrite_origin(directory, assembly)
        title = directory.experiment().method.name
        with combined_watcher(title, progress=progress, on_round=on_round, watcher=watcher) as combined:
            return Evaluation(_finish(assembly, directory, combined))


def evaluate(
    path: Path | str,
    settings: EvaluationSettings | None = None,
    *,
    network: NetworkSource | None = None,
    data: DataSet | Federation | None = None,
    workers: int | None = None,
    progress: bool = False,
    watcher: Watcher | None = None,
) -> Evaluation:
    """Evaluate a trained run again, by default as at the end of training; add a record to the run and return it."""
    end_if_importing()
    directory = RunDirectory.open(Path(path))
    if not directory.records("evaluations.jsonl"):  # the first record is the one that ends the training
        raise StorageError(f"got run {path}, which is not finished; expected a trained one. Continue it with --resume.")
    with directory.locked():
        tidy(directory)  # first, to refuse unusable files before loading the data
        chosen = directory.checkpoint("best") or directory.checkpoint("last")
        if chosen is None:
            raise StorageError(
                f"got run {path} without a checkpoint; expected a trained one. Train it again with --force."
            )
        assembly = assemble(_with_workers(directory.experiment(), workers), network, data)
        ensure_attacks(assembly.experiment, settings or EvaluationSettings(), len(assembly.federation.classes))
        prepared = with_next_duties(assembly, directory)
        with (
            combined_watcher("evaluate", progress=progress, watcher=watcher) as combined,
            one_thread(),
            assembly.executor() as execute,
        ):
            watched = _watched(execute, combined)
            record = evaluate_and_record(prepared, directory, chosen.state, watched, settings, combined)
        return Evaluation(record.to_json())


def _finish(assembly: Assembly, directory: RunDirectory, watcher: Watcher | None) -> dict[str, Any]:
    """Train the remaining rounds and evaluate. The caller holds the directory's lock and has recovered it."""
    last = directory.checkpoint("last")
    if last is not None and last.state.round < assembly.plan.schedule.rounds:
        _ensure_remembered(assembly, directory, last)
    directory.describe(assembly.plan.members, assembly.federation.classes, assembly.federation.image_shape)
    if watcher:
        watcher.training(assembly, last.state.round if last else 0)
    with assembly.executor(directory.clients) as execute:
        return train_and_evaluate(assembly, directory, _watched(execute, watcher), watcher, _replanned(directory))


def _as_recorded(assembly: Assembly, directory: RunDirectory) -> Assembly:
    """The assembly with the precision of the finished rounds: `auto` could choose another one on this machine."""
    recorded = trained_in(directory)
    if recorded is None:
        return assembly
    kept = replace(assembly, trained_in=recorded)
    try:
        _ = kept.precision
    except HardwareError as error:
        raise HardwareError(
            f"got run {directory.path}, trained in {recorded} so far, on a device that cannot compute in it; expected "
            "one that can, because the run would end with other weights. Continue it there, or retrain with --force."
        ) from error
    return kept


def _ensure_remembered(assembly: Assembly, directory: RunDirectory, last: Checkpoint) -> None:
    """Refuse to continue if clients have lost their memory: the run would end with other weights.

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


def _replanned(directory: RunDirectory) -> Revise:
    """Duties that change from round to round, if the experiment says so; the clients stay the same."""

    def revise(prepared: PreparedExperiment, state: ServerState) -> tuple[PreparedExperiment, ServerState]:
        revised = with_next_duties(prepared, directory)
        if revised is not prepared:
            directory.describe(revised.plan.members, revised.outline.classes, revised.outline.image_shape)
        return revised, state

    return revise


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
