"""The duration of a round in a fleet of different devices: as planned, and as measured by the clients of a run.

All clients of a run trained on one machine. A device that is s times as slow as the reference takes s times as long, so
its measured time is the client's mean over rounds, times s. One number is fitted to the run itself, the speed of the
machine during training: the total predicted and measured seconds of all clients are made equal. The remaining
differences test what a plan must know: the relative cost of duties.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from fedrbn.errors import FleetError
from fedrbn.fleet import description
from fedrbn.fleet.planner import Device, Workload, cost
from fedrbn.fleet.probe import workload
from fedrbn.reproduce.declarations import EXPERIMENTS
from fedrbn.runs.directory import RunDirectory
from fedrbn.runs.records import rounds
from fedrbn.types import Member, Role

FLEET = EXPERIMENTS / "budgets/fleet.toml"
"""The fleet of the experiment; its devices are the run's clients, in their order."""


def measure(path: Path) -> dict[str, float]:
    """Seconds of the slowest device in a round, planned and measured, and their difference in percent."""
    directory = RunDirectory.open(path)
    members, classes, image_shape = directory.description()
    fleet = description.read(FLEET)
    if len(fleet.devices) != len(members):
        raise FleetError(
            f"got a run of {len(members)} clients for a fleet of {len(fleet.devices)} devices; expected as many "
            "clients as devices. Read this number only from runs of the experiment budgets."
        )
    asked = workload(directory.experiment(), len(classes), image_shape)
    times: dict[str, list[float]] = defaultdict(list)
    for record in rounds(directory):
        for client, metrics in record.clients.items():
            times[client].append(metrics["seconds"])
    seconds = {client: fmean(own) for client, own in times.items()}
    return compared(members, fleet.devices, asked, seconds)


def compared(
    members: tuple[Member, ...], devices: tuple[Device, ...], asked: Workload, seconds: dict[str, float]
) -> dict[str, float]:
    """See `measure`; `seconds` is the time of each client on the machine that they shared."""
    donors = any(member.role is Role.AT for member in members)
    workload_of_run = asked if donors else replace(asked, lam=0.0)
    fastest = max(device.speed.forward for device in devices)
    planned, here = [], []
    for member, device in zip(members, devices, strict=True):
        predicted = cost(replace(device, samples=member.samples), workload_of_run, member.duty).compute_seconds
        planned.append(predicted)
        here.append(predicted * device.speed.forward / fastest)
    speed = sum(here) / sum(seconds[member.id] for member in members)
    measured = [
        seconds[member.id] * speed * fastest / device.speed.forward
        for member, device in zip(members, devices, strict=True)
    ]
    longest, found = max(planned), max(measured)
    return {"round plan": longest, "round measured": found, "round off": 100 * (found / longest - 1)}
