"""Choose a duty for each device of a fleet that fits a deadline: AT, AT on a part of its batches, PNC or ST.

    chosen = plan(devices, workload, deadline=30.0)

Devices compute in parallel, so each gets the most robust duty that it can finish in time. This also maximises the share
of adversarially trained images in every domain. Costs are counted in forward passes; a backward pass counts as two:
ST 3, PNC 6 (4 if λ = 1, where the clean loss needs no backward), AT with n steps (n + 1)·3 + 3.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import TYPE_CHECKING, Any

from rich.table import Table

from fedrbn.cost.units import PLAIN, passes
from fedrbn.errors import FleetError
from fedrbn.evaluation.results import frame, html, text
from fedrbn.types import Duty, Role

if TYPE_CHECKING:
    import pandas

LEAST_SHARE = 0.1
"""Smallest adversarial share of the batches that is worth it: with less, BN_a is trained on only a few batches."""

GRAIN = 0.05
"""Fractional shares are multiples of this."""


@dataclass(frozen=True)
class Speed:
    """Multiply-accumulates per second in forward passes, in backward passes, and in the steps of an attack.

    An attack's step counts as three forward passes like any training pass, but is faster in practice, because it needs
    no gradient of the weights. So it has its own speed.
    """

    forward: float
    backward: float
    attack: float

    def __post_init__(self) -> None:
        for name, value in (("forward", self.forward), ("backward", self.backward), ("attack", self.attack)):
            if not value > 0:
                raise FleetError(f"got {name} speed {value}; expected multiply-accumulates per second above 0.")


@dataclass(frozen=True)
class Device:
    """One client: how much data it has, and what its hardware can do."""

    id: str
    domain: str
    samples: int
    speed: Speed
    memory: float | None = None
    """Bytes free for training, in addition to the program itself; None means enough."""
    bandwidth: float | None = None
    """Bytes per second to and from the server; None means no limit."""
    correction: float = 1.0
    """Measured over predicted seconds of earlier rounds."""


@dataclass(frozen=True)
class Workload:
    """The work of a round, which is the same for all devices."""

    macs: int
    """Multiply-accumulates of one image's forward pass."""
    weight_bytes: int
    activation_bytes: int
    """Memory that one image needs until the backward pass."""
    download_bytes: int
    upload_bytes: Mapping[Role, int]
    batch_size: int
    local_epochs: int
    attack_steps: int
    lam: float
    """λ of PNC; with 0, PNC is standard training and is not offered."""
    shares: bool = True
    """Whether the method can also train only a share of a client's batches adversarially."""


@dataclass(frozen=True)
class Assignment:
    """The duty of a device and its cost."""

    device: str
    domain: str
    duty: Duty | None
    """None if it cannot take part; the cost is then that of plain standard training."""
    compute_seconds: float
    transfer_seconds: float
    traffic_bytes: int
    memory_bytes: int

    @property
    def at_share(self) -> float:
        """The share of its batches that it trains adversarially."""
        return self.duty.at_share if self.duty else 0.0

    @property
    def seconds(self) -> float:
        """Predicted time of the round for this device."""
        return self.compute_seconds + self.transfer_seconds

    def to_json(self) -> dict[str, Any]:
        """The values that `fedrbn plan --json` prints for this device."""
        return {
            "domain": self.domain,
            "duty": self.duty_text,
            "at_share": self.at_share,
            "lam": self.duty.lam if self.duty else None,
            "seconds": self.seconds,
            "bytes": self.traffic_bytes,
            "memory": self.memory_bytes,
        }

    @property
    def duty_text(self) -> str:
        """The duty as readable text."""
        return "left out" if self.duty is None else str(self.duty)


@dataclass(frozen=True)
class FleetPlan:
    """A duty for every device, the share of each domain that is trained adversarially, and the problems of the plan."""

    deadline: float
    devices: tuple[Device, ...]
    """The devices of the plan, with speeds corrected by measured times if there are any."""
    assignments: tuple[Assignment, ...]
    """One for each device, in their order."""
    coverage: dict[str, float]
    problems: tuple[str, ...]

    @property
    def feasible(self) -> bool:
        """Whether every device takes part and at least one trains adversarially."""
        return all(a.duty is not None for a in self.assignments) and any(a.at_share for a in self.assignments)

    @property
    def notes(self) -> tuple[str, ...]:
        """What `fedrbn plan` prints below its table: the coverage of every domain, then the problems."""
        shares = ", ".join(f"{domain} {share:.0%}" for domain, share in self.coverage.items())
        return (f"adversarially trained images per domain: {shares}", *(f"note: {one}" for one in self.problems))

    def table(self) -> Table:
        """The table that `fedrbn plan` prints: every device, its duty, and what a round costs it."""
        table = Table(title=f"Plan for a deadline of {self.deadline:g} s per round")
        for column in ("device", "domain", "duty", "adversarial batches", "time", "transfer part", "traffic", "memory"):
            table.add_column(column, justify="left" if column in ("device", "domain", "duty") else "right")
        for a in self.assignments:
            megabytes = (f"{count / 1e6:.1f} MB" for count in (a.traffic_bytes, a.memory_bytes))
            times = (f"{a.seconds:.3g} s", f"{a.transfer_seconds:.3g} s")
            table.add_row(a.device, a.domain, a.duty_text, f"{a.at_share:.0%}", *times, *megabytes)
        return table

    def __str__(self) -> str:
        return text(self.table()) + "".join(f"{note}\n" for note in self.notes)

    def _repr_html_(self) -> str:
        return html(self.table()) + "".join(f"<p>{escape(note)}</p>" for note in self.notes)

    def to_frame(self) -> pandas.DataFrame:
        """One row per device: domain, duty, adversarial share, λ, seconds, bytes sent and received, bytes of memory."""
        return frame({a.device: a.to_json() for a in self.assignments}, "device")


def plan(devices: Sequence[Device], workload: Workload, deadline: float) -> FleetPlan:
    """For every device the most robust duty that fits its memory and the deadline, in seconds per round."""
    if not devices or not deadline > 0:
        raise FleetError(
            f"got {len(devices)} devices and a deadline of {deadline} s; expected at least 1, and more than 0 s."
        )
    chosen = [_best(device, workload, deadline, donors=True) for device in devices]
    if not any(a.at_share for a in chosen):  # no donor of BN_a, so no calibration
        chosen = [_best(device, workload, deadline, donors=False) for device in devices]
    coverage = {
        domain: _coverage([(a.at_share, d.samples) for a, d in zip(chosen, devices, strict=True) if d.domain == domain])
        for domain in dict.fromkeys(device.domain for device in devices)
    }
    problems = _problems(devices, chosen, coverage, workload, deadline)
    return FleetPlan(deadline, tuple(devices), tuple(chosen), coverage, problems)


def cost(device: Device, workload: Workload, duty: Duty) -> Assignment:
    """What a duty costs a device; AT on a share of the batches is ST on the others."""
    if duty == Role.ST.duty:
        duty = Duty(lam=workload.lam)
    traffic = workload.download_bytes + workload.upload_bytes[duty.role]
    joined = 2 if duty.role is Role.AT or (duty.lam and duty.lam != 1) else 1
    return Assignment(
        device=device.id,
        domain=device.domain,
        duty=duty,
        compute_seconds=_compute(device, workload, duty),
        transfer_seconds=traffic / device.bandwidth if device.bandwidth else 0.0,
        traffic_bytes=traffic,
        # Four copies of the weights: as received, in training, their gradient, and the upload.
        memory_bytes=4 * workload.weight_bytes + joined * workload.activation_bytes * workload.batch_size,
    )


def _compute(device: Device, workload: Workload, duty: Duty) -> float:
    speed, image = device.speed, passes(duty, workload.attack_steps)
    seconds = image.forward / speed.forward + 2 * image.backward / speed.backward + 3 * image.attack / speed.attack
    return device.correction * device.samples * workload.local_epochs * workload.macs * seconds


def _best(device: Device, workload: Workload, deadline: float, *, donors: bool) -> Assignment:
    """The first duty that fits, from the most robust to the cheapest."""
    full, standard = cost(device, workload, Role.AT.duty), cost(device, workload, PLAIN)
    options = [full]
    share = _share(deadline, full, standard)
    if workload.shares and share >= LEAST_SHARE:
        options.append(cost(device, workload, Duty(at_share=share)))
    if donors and workload.lam > 0:
        options += [cost(device, workload, Duty(lam=lam)) for lam in sorted({workload.lam, 1.0})]
    options.append(standard)
    latest = deadline * (1 + 1e-9)  # a share computed to end on the deadline may round to just after it
    fitting = (option for option in options if option.seconds <= latest and _fits(device, option))
    return next(fitting, replace(standard, duty=None))


def _share(deadline: float, full: Assignment, standard: Assignment) -> float:
    """The largest multiple of GRAIN of adversarial batches within the deadline."""
    left = deadline - full.transfer_seconds - standard.compute_seconds
    share = left / (full.compute_seconds - standard.compute_seconds)
    return round(min(1 - GRAIN, math.floor(share / GRAIN + 1e-9) * GRAIN), 9)


def _fits(device: Device, assignment: Assignment) -> bool:
    return device.memory is None or assignment.memory_bytes <= device.memory


def _coverage(shares: Sequence[tuple[float, int]]) -> float:
    return sum(share * samples for share, samples in shares) / sum(samples for _, samples in shares)


def _problems(
    devices: Sequence[Device],
    chosen: Sequence[Assignment],
    coverage: Mapping[str, float],
    workload: Workload,
    deadline: float,
) -> tuple[str, ...]:
    """All problems of the plan, each with the number that would fix it."""
    found = [
        _left_out(device, assignment, workload, deadline)
        for device, assignment in zip(devices, chosen, strict=True)
        if assignment.duty is None
    ]
    if not any(coverage.values()):
        needed = _needed_for_at(devices, workload)
        found.append(
            f"no device can train adversarially within {deadline:g} s, so there is no robustness to propagate; {needed}"
        )
        return tuple(found)
    for domain in (domain for domain, share in coverage.items() if not share):
        needed = _needed_for_at([d for d in devices if d.domain == domain], workload)
        found.append(f"domain {domain!r} has no device that trains adversarially and relies on the others; {needed}")
    return tuple(found)


def _left_out(device: Device, standard: Assignment, workload: Workload, deadline: float) -> str:
    if not _fits(device, standard):
        spare = (device.memory or 0) - 4 * workload.weight_bytes
        batch = int(spare // workload.activation_bytes)
        cure = f"lower train.batch_size to {batch}" if batch >= 2 else "use a smaller model.width"
        return (
            f"{device.id} has {_megabytes(device.memory or 0)} and needs {_megabytes(standard.memory_bytes)} even for "
            f"standard training: {cure}"
        )
    spare_time = deadline - standard.transfer_seconds
    samples = int(device.samples * spare_time / standard.compute_seconds) if spare_time > 0 else 0
    fewer = f", or let it train on at most {samples} samples a round" if samples else ""
    return (
        f"{device.id} needs {standard.seconds:.3g} s even for standard training ({standard.compute_seconds:.3g} s "
        f"computing, {standard.transfer_seconds:.3g} s transferring), the deadline is {deadline:g} s: raise it{fewer}"
    )


def _needed_for_at(devices: Sequence[Device], workload: Workload) -> str:
    """The shortest deadline at which one of these devices could train the smallest share adversarially."""
    options = [(device, cost(device, workload, Duty(at_share=LEAST_SHARE))) for device in devices]
    possible = [(option.seconds, device.id) for device, option in options if _fits(device, option)]
    if not possible:
        return "none of its devices has the memory for it: lower train.batch_size or model.width"
    seconds, name = min(possible)
    return f"{name} could at a deadline of {seconds:.3g} s, on {LEAST_SHARE:.0%} of its batches"


def _megabytes(count: float) -> str:
    return f"{count / 1e6:.0f} MB"
