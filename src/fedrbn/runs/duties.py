"""The duties of a run's next round, if they are planned again between rounds."""

from __future__ import annotations

from dataclasses import replace

from fedrbn.federated.prepared_experiment import PreparedExperiment
from fedrbn.fleet.probe import workload
from fedrbn.fleet.replanning import ensure_replannable, next_duties, recorded_duties
from fedrbn.runs.directory import RunDirectory
from fedrbn.runs.records import rounds


def with_next_duties(prepared: PreparedExperiment, directory: RunDirectory) -> PreparedExperiment:
    """The experiment with the duties of the round after the recorded ones, or of the last round if all are recorded."""
    experiment, outline, members = prepared.experiment, prepared.outline, prepared.plan.members
    if experiment.federation.replan is None:
        return prepared
    ensure_replannable(experiment, prepared.plan.method)
    records = rounds(directory)
    if records and records[-1].round >= prepared.plan.schedule.rounds:
        duties = recorded_duties(records[-1])
    else:
        duties = next_duties(
            experiment, members, lambda: workload(experiment, len(outline.classes), outline.image_shape), records
        )
    changed = tuple(replace(member, duty=duties.get(member.id, member.duty)) for member in members)
    return prepared if changed == members else prepared.with_plan(replace(prepared.plan, members=changed))
