"""A fleet as a TOML file: a deadline, the devices, and the experiment that they will run; see `EXAMPLE`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from fedrbn import config
from fedrbn.config import DutiesConfig, DutyConfig, Experiment
from fedrbn.errors import ConfigError, FleetError
from fedrbn.files import MOST_SETTINGS, read_named, write_atomically
from fedrbn.fleet.planner import Device, FleetPlan, Speed, Workload, cost
from fedrbn.types import Duty

EXAMPLE = """\
# A fleet for fedrbn plan, which gives each device the most robust duty that it can afford.

deadline = 30                          # seconds per round
classes = 10
image_shape = [3, 28, 28]              # channels, height, width

[model]                                # the sections of an experiment, with the same defaults
width = 0.25

[[device]]
id = "workstation"
domain = "street"
samples = 300
macs_per_second = 4e10                 # or: probe = "workstation.json", as written by fedrbn probe --json
memory = "8 GB"
bandwidth = "100 Mbit/s"

[[device]]
id = "phone"
count = 3                              # phone-0, phone-1, phone-2
domain = "pen"
samples = 300
macs_per_second = 1e9
memory = "512 MB"
bandwidth = "8 Mbit/s"

[[device]]
id = "camera"
domain = "street"
samples = 300
macs_per_second = 2e8
memory = "256 MB"
bandwidth = "20 Mbit/s"

[[device]]
id = "sensor"
domain = "pen"
samples = 100
macs_per_second = 5e7
memory = "64 MB"
bandwidth = "20 Mbit/s"
"""

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
    slower: float = Field(default=1.0, gt=0)
    """How many times slower it is than its `macs_per_second` or `probe`: one probe can describe similar devices."""
    memory: Quantity | None = None
    bandwidth: Quantity | None = None

    @model_validator(mode="after")
    def _one_speed(self) -> DeviceEntry:
        if (self.macs_per_second is None) == (self.probe is None):
            raise FleetError(f"device {self.id!r} needs either macs_per_second or probe, but not both")
        return self


class SpeedEntry(BaseModel):
    """The speeds in a probe."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    forward: float = Field(gt=0)
    backward: float = Field(gt=0)
    attack: float = Field(gt=0)


class ProbeEntry(BaseModel):
    """The part of the output of fedrbn probe --json that a plan needs."""

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


def write_example(path: Path) -> None:
    """Write `EXAMPLE` to a new file."""
    if path.exists():
        raise FleetError(f"got {path}, which already exists; expected a new file. Choose another name.")
    write_atomically(path, EXAMPLE.encode())


@dataclass(frozen=True)
class Fleet:
    """A fleet file that has been read."""

    deadline: float
    devices: tuple[Device, ...]
    experiment: Experiment
    classes: int
    image_shape: tuple[int, int, int]


@dataclass(frozen=True)
class TimingCheck:
    """A device's predicted computing time per round, and the median of the measured times."""

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
            "deadline, [[device]] entries and the sections of an experiment (docs/budgets.md has an example)."
        ) from None
    devices = tuple(device for item in entry.device for device in _devices(item, path.parent))
    names = [device.id for device in devices]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ConfigError(f"got device {twice!r} twice in {path}; expected unique ids, or one entry with count.")
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
            speed=Speed(**{name: value / entry.slower for name, value in probed.speed.model_dump().items()}),
            memory=entry.memory or probed.memory,
            bandwidth=entry.bandwidth or probed.bandwidth,
        )
        for name in names
    ]


def _probe(path: Path) -> ProbeEntry:
    try:
        return ProbeEntry.model_validate_json(read_named(path, MOST_SETTINGS))
    except ValidationError as error:
        first = error.errors()[0]
        why = f"{'.'.join(str(part) for part in first['loc']) or 'content'}: {first['msg']}"
    except (OSError, ValueError) as error:
        why = str(error)
    raise ConfigError(f"got probe {path}, which cannot be used ({why}); expected the output of fedrbn probe --json.")


def check(
    devices: tuple[Device, ...], workload: Workload, rounds: Mapping[str, tuple[Duty, float]]
) -> list[TimingCheck]:
    """Predicted and measured times of the devices that are clients of the run."""
    found = []
    for device in devices:
        if device.id in rounds:
            duty, seconds = rounds[device.id]
            expected = cost(device, workload, duty)
            found.append(TimingCheck(device.id, duty, expected.compute_seconds, seconds))
    if not found:
        raise ConfigError(
            f"got a run with the clients {', '.join(list(rounds)[:5])} …; expected ids of the fleet's devices: "
            f"{', '.join(device.id for device in devices[:5])} …. Use the clients' ids for the devices."
        )
    return found


def corrected(devices: tuple[Device, ...], checks: list[TimingCheck]) -> tuple[Device, ...]:
    """The devices with their speed corrected by the measured times, to plan again."""
    ratios = {item.device: item.ratio for item in checks}
    return tuple(replace(d, correction=d.correction * ratios.get(d.id, 1.0)) for d in devices)


def duties_of(plan: FleetPlan) -> DutiesConfig:
    """The plan as `federation.duties`: a duty for every device, and what it can do, to plan again."""
    if (left := [a.device for a in plan.assignments if a.duty is None]) or not plan.feasible:
        who = f"without a duty for {left[0]!r}" if left else "in which no device trains adversarially"
        raise FleetError(
            f"got a plan {who}, which cannot be run; expected a duty for every device, at least one with AT. Follow "
            "the notes of fedrbn plan: raise the deadline, or remove the device from the fleet."
        )
    return DutiesConfig(
        deadline=plan.deadline,
        clients={a.device: _entry(a.duty, d) for a, d in zip(plan.assignments, plan.devices, strict=True) if a.duty},
    )


def _entry(duty: Duty, device: Device) -> DutyConfig:
    speed, slower = device.speed, device.correction
    return DutyConfig(
        at_share=duty.at_share,
        lam=duty.lam,
        speed=(speed.forward / slower, speed.backward / slower, speed.attack / slower),
        memory=device.memory,
        bandwidth=device.bandwidth,
    )


def to_toml(duties: DutiesConfig) -> str:
    """The content of a duties file."""
    import tomli_w  # noqa: PLC0415  (only writers need it)

    values: dict[str, Any] = duties.model_dump(mode="json", exclude_none=True)
    return tomli_w.dumps(values)
