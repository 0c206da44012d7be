"""Evaluate a trained state on the clients' test data, and write the record of it into the run directory."""

from __future__ import annotations

from fedrbn.cost.count import cost_of
from fedrbn.evaluation.protocol import EvaluationSettings, evaluate_clients
from fedrbn.evaluation.records import EvaluationRecord
from fedrbn.federated.prepared_experiment import PreparedExperiment
from fedrbn.federated.protocol import Execute, ServerState
from fedrbn.runs.directory import RunDirectory
from fedrbn.runs.privacy_spent import privacy_spent
from fedrbn.runs.records import rounds, trained_in
from fedrbn.runs.watcher import Watcher


def evaluate_and_record(
    prepared: PreparedExperiment,
    directory: RunDirectory,
    state: ServerState,
    execute: Execute,
    settings: EvaluationSettings | None,
    watcher: Watcher | None,
) -> EvaluationRecord:
    """Evaluate every client on its test data; writes the record and the per-sample answers."""
    if watcher:
        watcher.evaluating(len(prepared.plan.members))
    evaluated, answers = evaluate_clients(prepared, state, execute, settings or EvaluationSettings())
    added = {"cost": cost_of(prepared), **prepared.record_extras(state)}
    added |= privacy_spent(prepared, directory, len(rounds(directory)))
    recorded_in = trained_in(directory)
    if recorded_in is not None:  # perhaps on another machine
        added["precision"] = recorded_in
    record = EvaluationRecord.from_json(evaluated.to_json() | added)
    number = len(directory.records("evaluations.jsonl"))
    directory.save_tensors(f"answers/{number}.safetensors", answers)
    directory.append("evaluations.jsonl", record.to_json())
    return record
