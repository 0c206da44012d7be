"""A fleet as a TOML file: a deadline, the devices, and the experiment they are to run.

deadline = 30                          # seconds per round
classes = 10
image_shape = [3, 28, 28]

[model]                                # the sections of an experiment, with the same defaults
width = 0.25

[[device]]
id = "phone"
count = 3                              # phone-0, phone-1, phone-2
domain = "pen"
samples = 300
macs_per_second = 2e9                  # or: probe = "phone.json", as written by fedrbn probe --json
memory = "512 MB"
bandwidth = "8 Mbit/s"
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from fedrbn import config
from fedrbn.config import Experiment
from fedrbn.cost.units import Duty
from fedrbn.errors import ConfigError, FleetError
from fedrbn.fleet.planner import Device, FleetPlan, Speed, Workload, cost
from fedrbn.runs.directory import RunDirectory
from fedrbn.runs.records import rounds
from fedrbn.types import Role

_UNITS = {"": 1, "k": 1e3, "M": 1e6, "G": 1e9}


def quantity(value: object) -> object:
    """Bytes, or bytes per second, from a number or from text such as 512 MB, 1.5 GB/s or 8 Mbit/s."""
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"\s*([0-9.]+)\s*([kMG]?)(B|bit)(?:/s)?\s*", value)
    if match is None:
        raise FleetError(f"got {value!r}; expected a number with a unit, such as 512 MB, 1.5 GB/s or 8 Mbit/s")
    return float(match[1]) * _UNITS[match[2]] / (8 if match[3] == "bit" else 1)


_MOST_DEVICES = 100_000
_Side = Annotated[int, Field(ge=1, le=1024)]
Quantity = Annotated[float, BeforeValidator(quantity), Field(gt=0)]


class DeviceEntry(BaseModel):
    """One [[device]] of the file."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    id: str = Field(min_length=1)
    count: int | None = Field(default=None, ge=1, le=_MOST_DEVICES)
    domain: str
    samples: int = Field(ge=1)
    macs_per_second: float | None = Field(default=None, gt=0)
    probe: str | None = None
    memory: Quantity | None = None
    bandwidth: Quantity | None = None

    @model_validator(mode="after")
    def _one_speed(self) -> DeviceEntry:
        if (self.macs_per_second is None) == (self.probe is None):
            raise FleetError(f"device {self.id!r} needs either macs_per_second or probe, and not both")
        return self


class SpeedEntry(BaseModel):
    """The speeds in a probe."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    forward: float = Field(gt=0)
    backward: float = Field(gt=0)
    attack: float = Field(gt=0)


class ProbeEntry(BaseModel):
    """What fedrbn probe --json prints, as far as a plan needs it."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)

    speed: SpeedEntry
    memory: float | None = Field(default=None, gt=0)
    bandwidth: float | None = Field(default=None, gt=0)


class FleetEntry(BaseModel):
    """The file without the sections of the experiment."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    deadline: float = Field(gt=0)
    classes: int = Field(default=10, ge=2, le=2**16)
    image_shape: tuple[_Side, _Side, _Side] = (3, 28, 28)
    device: tuple[DeviceEntry, ...] = Field(min_length=1, max_length=_MOST_DEVICES)


@dataclass(frozen=True)
class Fleet:
    """A fleet file that has been read."""

    deadline: float
    devices: tuple[Device, ...]
    experiment: Experiment
    classes: int
    image_shape: tuple[int, int, int]


@dataclass(frozen=True)
class Check:
    """A device's predicted computing time in a round, and the median of what it took."""

    device: str
    duty: Duty
    predicted: float
    measured: float

    @property
    def ratio(self) -> float:
        """Measured over predicted."""
        return self.measured / self.predicted


def read(path: Path) -> Fleet:
    """Read a fleet file."""
    values = config.read(path)
    sections = {key: values.pop(key) for key in list(values) if key in Experiment.model_fields}
    try:
        entry = FleetEntry.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise ConfigError(
            f"got fleet file {path} with {place or 'content'}: {first['msg'].removeprefix('Value error, ')}; expected "
            "deadline, [[device]] entries and the sections of an experiment (docs/deploy.md has an example)."
        ) from None
    devices = tuple(device for item in entry.device for device in _devices(item, path.parent))
    names = [device.id for device in devices]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ConfigError(f"got device {twice!r} twice in {path}; expected ids of their own, or one entry with count.")
    return Fleet(entry.deadline, devices, config.make(sections), entry.classes, entry.image_shape)


def _devices(entry: DeviceEntry, folder: Path) -> list[Device]:
    if entry.probe is None:
        assumed = entry.macs_per_second
        probed = ProbeEntry.model_validate({"speed": dict.fromkeys(("forward", "backward", "attack"), assumed)})
    else:
        probed = _probe(folder / entry.probe)
    names = [entry.id] if entry.count is None else [f"{entry.id}-{number}" for number in range(entry.count)]
    return [
        Device(
            id=name,
            domain=entry.domain,
            samples=entry.samples,
            speed=Speed(**probed.speed.model_dump()),
            memory=entry.memory or probed.memory,
            bandwidth=entry.bandwidth or probed.bandwidth,
        )
        for name in names
    ]


def _probe(path: Path) -> ProbeEntry:
    try:
        return ProbeEntry.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        why = f"{'.'.join(str(part) for part in first['loc']) or 'content'}: {first['msg']}"
    except (OSError, ValueError) as error:
        why = str(error)
    raise ConfigError(f"got probe {path}, which cannot be used ({why}); expected what fedrbn probe --json prints.")


def measured_seconds(run: Path) -> dict[str, tuple[Duty, float]]:
    """What each client of a run did in its later rounds, and the median seconds it computed.

    Rounds before calibration starts are left out where there are later ones.
    """
    directory = RunDirectory.open(run)
    members, _, _ = directory.description()
    method = directory.experiment().method
    calibrates = bool(method.lam) and any(member.role is Role.AT for member in members)
    first = (method.warmup or 0) + 2 if calibrates else 1
    times: dict[str, list[float]] = defaultdict(list)
    for record in rounds(directory):
        if record.round >= first:
            for client, metrics in record.clients.items():
                times[client].append(metrics.get("seconds", 0.0))
    if not times:
        raise ConfigError(f"got run {run} without rounds after the first {first - 1}; expected some. Train it longer.")
    standard = Duty.PNC if calibrates else Duty.ST
    duties = {member.id: Duty.AT if member.role is Role.AT else standard for member in members}
    if strangers := sorted(times.keys() - duties.keys()):
        raise ConfigError(f"got run {run} with rounds of {strangers[0]!r}; expected its clients {', '.join(duties)}.")
    return {client: (duties[client], median(seconds)) for client, seconds in times.items()}


def check(devices: tuple[Device, ...], workload: Workload, rounds: Mapping[str, tuple[Duty, float]]) -> list[Check]:
    """Predicted against measured, for the devices that are clients of the run."""
    found = []
    for device in devices:
        if device.id in rounds:
            duty, seconds = rounds[device.id]
            lam = workload.lam if duty is Duty.PNC else None
            found.append(Check(device.id, duty, cost(device, workload, duty, lam=lam).compute_seconds, seconds))
    if not found:
        raise ConfigError(
            f"got a run with the clients {', '.join(list(rounds)[:5])} …; expected ids of the fleet's devices: "
            f"{', '.join(device.id for device in devices[:5])} …. Name the devices like the clients."
        )
    return found


def corrected(devices: tuple[Device, ...], checks: list[Check]) -> tuple[Device, ...]:
    """The devices with their speed corrected by what was measured, to plan again with."""
    ratios = {item.device: item.ratio for item in checks}
    return tuple(replace(d, correction=d.correction * ratios.get(d.id, 1.0)) for d in devices)


def settings(plan: FleetPlan) -> list[str]:
    """The plan as an option of `fedrbn run`: the devices that train adversarially on all of their batches."""
    chosen = [a.device for a in plan.assignments if a.duty is Duty.AT]
    return ["--set", f"federation.at={json.dumps(chosen)}"] if chosen else []
