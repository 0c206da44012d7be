"""Plan a fleet from its file: a duty for every device, corrected by a run's measured times if there is one."""

from __future__ import annotations

from pathlib import Path

from fedrbn.fleet import description, planner, probe
from fedrbn.fleet.description import TimingCheck
from fedrbn.fleet.planner import FleetPlan
from fedrbn.runs.measured import measured_seconds


def plan_fleet(
    path: Path | str, *, deadline: float | None = None, measured: Path | str | None = None
) -> tuple[FleetPlan, list[TimingCheck]]:
    """The plan for a fleet file, and predicted and measured times if `measured` names a run of the fleet.

    `deadline` is in seconds per round and replaces the file's deadline.
    """
    found = description.read(Path(path))
    workload = probe.workload(found.experiment, found.classes, found.image_shape)
    devices, checks = found.devices, []
    if measured is not None:
        checks = description.check(devices, workload, measured_seconds(Path(measured)))
        devices = description.corrected(devices, checks)
    return planner.plan(devices, workload, deadline or found.deadline), checks
