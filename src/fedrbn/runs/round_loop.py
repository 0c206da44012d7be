"""The rounds of a run: play one after another, record and checkpoint each, then evaluate the chosen state."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from fedrbn.errors import StorageError
from fedrbn.evaluation.protocol import origin_of
from fedrbn.federated.divergence import diverging, first_losses_of
from fedrbn.federated.prepared_experiment import PreparedExperiment
from fedrbn.federated.protocol import Execute, ServerState
from fedrbn.federated.server import RoundReport, initial_state, play_round, state_mismatch
from fedrbn.federated.uploads.collection import TooFewClientsError, listed
from fedrbn.hardware import one_thread
from fedrbn.runs import rounds_csv
from fedrbn.runs.checkpoint import Best, Checkpoint
from fedrbn.runs.directory import RunDirectory
from fedrbn.runs.evaluation_record import evaluate_and_record
from fedrbn.runs.privacy_spent import note_attempt
from fedrbn.runs.records import rounds
from fedrbn.runs.round_record import round_record
from fedrbn.runs.validation_score import validate, validation_due
from fedrbn.runs.watcher import Watcher
from fedrbn.types import Role

Revise: TypeAlias = Callable[[PreparedExperiment, ServerState], tuple[PreparedExperiment, ServerState]]
"""Called before each round and before the evaluation; may change the clients and with them the server's state."""


def unchanged(prepared: PreparedExperiment, state: ServerState) -> tuple[PreparedExperiment, ServerState]:
    """Keep the same clients in all rounds."""
    return prepared, state


def train_and_evaluate(
    prepared: PreparedExperiment,
    directory: RunDirectory,
    execute: Execute,
    watcher: Watcher | None = None,
    revise: Revise = unchanged,
) -> dict[str, Any]:
    """Run the remaining rounds, then evaluate the state that validation chose; returns the record of the evaluation.

    The caller holds the directory's lock and has recovered it. `revise` is asked before every round and
    before the evaluation. The server's own arithmetic takes one thread: more would spin against the workers.
    """
    with one_thread():
        prepared, state = _train_rounds(prepared, directory, execute, watcher, revise)
        return evaluate_and_record(prepared, directory, state, execute, None, watcher).to_json()


def _train_rounds(
    prepared: PreparedExperiment, directory: RunDirectory, execute: Execute, watcher: Watcher | None, revise: Revise
) -> tuple[PreparedExperiment, ServerState]:
    """Run the remaining rounds; returns the final prepared experiment and the state that validation chose."""
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
        state, report = _play(prepared, directory, state, execute, origin)
        validation = None
        if validation_due(prepared, state.round):
            validation = validate(prepared, state, execute)
            best = _save_if_best(prepared, directory, state, validation["score"], best)
        warning, seconds = diverging(report, first_losses), time.perf_counter() - started
        record = round_record(prepared, directory, state, report, origin, warning, validation, seconds)
        started = time.perf_counter()
        first_losses = first_losses_of([first_losses, record.losses])
        directory.append("rounds.jsonl", record.to_json())
        rounds_csv.add(directory, record, _roles(prepared))
        directory.save("last", state, best)
        if watcher:
            watcher.round_finished(record)
    chosen = directory.checkpoint("best")
    return prepared, _with_latecomers(directory, chosen, state) if chosen else state


def _play(
    prepared: PreparedExperiment, directory: RunDirectory, state: ServerState, execute: Execute, origin: dict[str, Any]
) -> tuple[ServerState, RoundReport]:
    """Play a round; if too few clients finish it, the directory says so."""
    note_attempt(prepared, directory, state.round + 1)
    try:
        return play_round(state, prepared.plan, execute)
    except TooFewClientsError as error:
        directory.append("stops.jsonl", {**origin, "round": error.number + 1, "failures": listed(error.failures)})
        raise


def _save_if_best(
    prepared: PreparedExperiment, directory: RunDirectory, state: ServerState, score: float | None, best: Best | None
) -> Best | None:
    """Keep the state if no validated round before it scored as well; returns the best round so far."""
    better = best is None or score is None or score > best.score
    if not (better and prepared.plan.schedule.may_choose(state.round)):
        return best
    best = Best(state.round, score or 0.0)
    directory.save("best", state, best)
    return best


def _with_latecomers(directory: RunDirectory, chosen: Checkpoint, last: ServerState) -> ServerState:
    """The chosen state, plus the latest batch norm of clients that joined after it."""
    state = chosen.state
    if state.personal.keys() == last.personal.keys():
        return state
    merged = replace(state, personal=last.personal | state.personal, reported=last.reported | state.reported)
    directory.save("best", merged, chosen.best)
    return merged


def _roles(prepared: PreparedExperiment) -> dict[str, Role]:
    return {member.id: member.role for member in prepared.plan.members}


def _ensure_fit(prepared: PreparedExperiment, state: ServerState, path: Path) -> None:
    wrong = state_mismatch(state, prepared.net, prepared.plan)
    if wrong:
        raise StorageError(
            f"got the checkpoint of {path} with {wrong}; expected that of this experiment. It is of another network or "
            "federation: give the same network and data as when the run began, or start over with --force."
        )
