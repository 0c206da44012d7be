"""The record of a finished round: the line that the loop writes to `rounds.jsonl`."""

from __future__ import annotations

from typing import Any

from fedrbn.evaluation.records import RoundRecord
from fedrbn.federated.prepared_experiment import PreparedExperiment
from fedrbn.federated.protocol import ServerState
from fedrbn.federated.server import RoundReport
from fedrbn.federated.uploads.collection import listed
from fedrbn.fleet.replanning import duties_record
from fedrbn.runs.directory import RunDirectory
from fedrbn.runs.privacy_spent import privacy_spent


def round_record(
    prepared: PreparedExperiment,
    directory: RunDirectory,
    state: ServerState,
    report: RoundReport,
    origin: dict[str, Any],
    warning: str | None,
    validation: dict[str, float | None] | None,
    seconds: float,
) -> RoundRecord:
    """What is written of the round that led to this state; what did not happen in it is left out."""
    line: dict[str, Any] = {**origin, "round": state.round, "lr": report.lr, "clients": report.clients}
    line |= prepared.record_extras(state) | duties_record(prepared.experiment, prepared.plan.members)
    line |= privacy_spent(prepared, directory, state.round)
    if report.failures:
        line["failures"] = listed(report.failures)
    if warning:
        line["warning"] = warning
    if validation is not None:
        line["validation"] = validation
    return RoundRecord.from_json({**line, "seconds": seconds})
