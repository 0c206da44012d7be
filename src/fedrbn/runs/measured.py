"""The duties of a run's clients and their measured times per round."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from statistics import median

from fedrbn.errors import ConfigError
from fedrbn.runs.directory import RunDirectory
from fedrbn.runs.records import rounds
from fedrbn.types import Duty, Role


def measured_seconds(run: Path) -> dict[str, tuple[Duty, float]]:
    """Each client's duty in the later rounds of a run, and its median computing time.

    Rounds before calibration starts are left out if there are later ones.
    """
    directory = RunDirectory.open(run)
    members, _, _ = directory.description()
    method = directory.experiment().method
    donors = any(member.role is Role.AT for member in members)
    calibrates = donors and method.lam is not None
    first = (method.warmup or 0) + 2 if calibrates else 1
    times: dict[str, list[float]] = defaultdict(list)
    for record in rounds(directory):
        if record.round >= first:
            for client, metrics in record.clients.items():
                times[client].append(metrics.get("seconds", 0.0))
    if not times:
        raise ConfigError(f"got run {run} without rounds after the first {first - 1}; expected some. Train it longer.")
    own = Duty(lam=method.lam if calibrates else 0.0)
    duties = {member.id: own if member.duty == Role.ST.duty else member.duty for member in members}
    if strangers := sorted(times.keys() - duties.keys()):
        raise ConfigError(f"got run {run} with rounds of {strangers[0]!r}; expected its clients {', '.join(duties)}.")
    return {client: (duties[client], median(seconds)) for client, seconds in times.items()}
