"""Plan again between rounds from the clients' measured times; off unless `federation.replan` says how often.

The duties of a round depend only on the run's first plan and on the records of its finished rounds. A resumed run has
the same records, so it continues with the same duties.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from statistics import median
from typing import Any

from fedrbn.config import Experiment
from fedrbn.config.federation import DutiesConfig
from fedrbn.errors import ConfigError
from fedrbn.evaluation.records import RoundRecord
from fedrbn.federated.methods import Method
from fedrbn.fleet.planner import Device, Speed, Workload, cost, plan
from fedrbn.types import Duty, Member


def ensure_replannable(experiment: Experiment, method: Method) -> None:
    """Refuse `federation.replan` if the duties cannot be planned again."""
    planned = experiment.federation.duties
    if experiment.federation.replan is None or planned is None:
        return
    without = next((client for client, own in planned.clients.items() if own.speed is None), None)
    if without is not None or planned.deadline is None:
        what = "a deadline" if planned.deadline is None else f"a speed of {without!r}"
        raise ConfigError(
            f"got federation.replan with duties without {what}; expected a file of fedrbn plan -o, with a deadline and "
            "every device's speed. Use such a file, or leave replan out."
        )
    if method.adaptation is not None:
        raise ConfigError(
            f"got federation.replan with method {method.name!r}, whose clients adapt before evaluation according to "
            "their first role; expected a method without adaptation. Leave replan out."
        )


def next_duties(
    experiment: Experiment, members: Sequence[Member], asked: Callable[[], Workload], records: Sequence[RoundRecord]
) -> dict[str, Duty]:
    """The duties of the round after these: those of the last round, or a new plan if it is due; empty at the start."""
    every, planned = experiment.federation.replan, experiment.federation.duties
    if every is None or planned is None or not records:
        return {}
    if records[-1].round % every:
        return recorded_duties(records[-1])
    first = (experiment.method.warmup or 0) + 2  # no client can calibrate in earlier rounds
    recent = [record for record in records[-every:] if record.round >= first]
    devices = _corrected(planned, members, asked(), recent)
    chosen = plan(devices, asked(), planned.deadline or 0.0)
    return {a.device: a.duty or Duty(lam=0.0) for a in chosen.assignments}


def recorded_duties(record: RoundRecord) -> dict[str, Duty]:
    """The duties that a record names."""
    return {client: Duty(own.get("at_share") or 0.0, own.get("lam")) for client, own in (record.duties or {}).items()}


def duties_record(experiment: Experiment, members: Sequence[Member]) -> dict[str, Any]:
    """The duties for a round's record if they can change; otherwise empty."""
    if experiment.federation.replan is None:
        return {}
    return {"duties": {member.id: asdict(member.duty) for member in members}}


def _corrected(
    planned: DutiesConfig, members: Sequence[Member], asked: Workload, records: Sequence[RoundRecord]
) -> list[Device]:
    """The devices of the members, each corrected by the median of measured over predicted seconds in these rounds."""
    devices = {member.id: _device(planned, member) for member in members}
    ratios: dict[str, list[float]] = defaultdict(list)
    for record in records:
        did = recorded_duties(record)
        for client, metrics in record.clients.items():
            if client in devices and client in did and "seconds" in metrics:
                predicted = cost(devices[client], asked, did[client]).compute_seconds
                ratios[client].append(metrics["seconds"] / predicted)
    return [replace(d, correction=median(ratios[d.id]) if ratios[d.id] else 1.0) for d in devices.values()]


def _device(planned: DutiesConfig, member: Member) -> Device:
    own = planned.clients[member.id]
    speed = Speed(*(own.speed or (1.0, 1.0, 1.0)))  # `ensure_replannable` guarantees a speed
    return Device(member.id, member.domain, member.samples, speed, own.memory, own.bandwidth)
