"""Measure in a few seconds how fast this machine trains, and count what a network needs.

speed = probe(net, image_shape=(3, 28, 28), batch_size=32, seconds=5).speed
"""

from __future__ import annotations

import os
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from fedrbn.attacks import from_config
from fedrbn.config import Experiment
from fedrbn.cost.count import traffic
from fedrbn.errors import FleetError
from fedrbn.federated.aggregation.layout import layout
from fedrbn.federated.assemble import build_network
from fedrbn.federated.options import configure
from fedrbn.fleet.planner import Speed, Workload
from fedrbn.hardware import one_thread
from fedrbn.nets.dual_bn import DualNet
from fedrbn.randomness import generator
from fedrbn.types import Branch, Duty, Role, Stats


@dataclass(frozen=True)
class Probe:
    """The measurements, with one thread, as clients compute."""

    speed: Speed
    memory: float | None
    """Bytes free while this program runs; None if the system does not tell."""
    memory_bandwidth: float
    """Bytes per second of a copy in memory."""
    bandwidth: float | None
    """Bytes per second from the given address; None without an address."""


def network(experiment: Experiment, classes: int, image_shape: tuple[int, int, int]) -> DualNet:
    """The network of an experiment as its method trains it."""
    method = configure(experiment.method, from_config(experiment.attack))
    return build_network(experiment, method, classes, image_shape)


def workload(experiment: Experiment, classes: int, image_shape: tuple[int, int, int]) -> Workload:
    """The work of a round of this experiment for a device."""
    method = configure(experiment.method, from_config(experiment.attack))
    net = network(experiment, classes, image_shape)
    names = layout(net, method.local)
    at, st = (traffic(net, names, role) for role in (Role.AT, Role.ST))
    return Workload(
        macs=forward_macs(net, image_shape),
        weight_bytes=at.down,
        activation_bytes=activation_bytes(net, image_shape),
        download_bytes=at.down,
        upload_bytes={Role.AT: at.up, Role.ST: st.up},
        batch_size=experiment.train.batch_size,
        local_epochs=experiment.train.local_epochs,
        attack_steps=experiment.attack.steps,
        lam=method.calibration.lam if method.calibration else 0.0,
        shares=method.refusal(Duty(at_share=0.5)) is None,
    )


def forward_macs(net: DualNet, image_shape: tuple[int, int, int]) -> int:
    """Multiply-accumulates of one image's forward pass, in convolutions and linear layers."""
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), counter:
        net(torch.zeros(1, *image_shape), Branch.CLEAN, Stats.FROZEN)
    return counter.get_total_flops() // 2  # one multiplication and one addition each


def activation_bytes(net: DualNet, image_shape: tuple[int, int, int]) -> int:
    """Bytes that the forward pass keeps for the backward pass, per image of a batch."""
    return _saved_bytes(net, image_shape, 3) - _saved_bytes(net, image_shape, 2)


def _saved_bytes(net: DualNet, image_shape: tuple[int, int, int], images: int) -> int:
    kept: list[Tensor] = []  # keeps them alive, so that no two have the same address

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        kept.append(net(torch.zeros(images, *image_shape), Branch.CLEAN, Stats.FROZEN))
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in kept}
    return sum(storages.values())


def probe(
    net: DualNet,
    image_shape: tuple[int, int, int],
    batch_size: int,
    seconds: float = 5.0,
    url: str | None = None,
) -> Probe:
    """Measure for about `seconds` seconds; with `url` (http or https) also the download speed from there."""
    if not seconds > 0:
        raise FleetError(f"got seconds = {seconds}; expected a time above 0, such as 5.")
    parts = 0.8 if url else 0.95
    with one_thread():
        speed = measure_speed(net, image_shape, batch_size, parts * seconds)
        copying = _copy_speed()
    return Probe(speed, free_memory(), copying, download_speed(url, 0.15 * seconds) if url else None)


def measure_speed(
    net: DualNet,
    image_shape: tuple[int, int, int],
    batch_size: int,
    seconds: float,
    clock: Callable[[], float] = time.perf_counter,
) -> Speed:
    """Time forward, backward and attack passes of whole batches, interleaved so that other load affects all three."""
    random = generator(0, "probe")
    x = torch.rand(batch_size, *image_shape, generator=random)
    y = torch.zeros(batch_size, dtype=torch.int64)
    work = batch_size * forward_macs(net, image_shape)
    forward: list[float] = []
    backward: list[float] = []
    attack: list[float] = []
    until = clock() + seconds
    while clock() < until or len(attack) < 3:
        started = clock()
        loss = F.cross_entropy(net(x, Branch.CLEAN, Stats.BATCH), y)
        forward.append(clock() - started)
        started = clock()
        loss.backward()  # type: ignore[no-untyped-call]
        backward.append(clock() - started)
        net.zero_grad()
        attack.append(_elapsed(lambda: _attack_step(net, x, y), clock))
    return Speed(work / median(forward), 2 * work / median(backward), 3 * work / median(attack))


def _attack_step(net: DualNet, x: Tensor, y: Tensor) -> None:
    pixels = x.clone().requires_grad_()
    torch.autograd.grad(F.cross_entropy(net(pixels, Branch.NOISED, Stats.FROZEN), y), pixels)


def _elapsed(action: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    started = clock()
    action()
    return clock() - started


def free_memory() -> float | None:
    """Bytes of free memory; None if the system does not tell."""
    names = os.sysconf_names if hasattr(os, "sysconf_names") else {}
    pages = "SC_AVPHYS_PAGES" if "SC_AVPHYS_PAGES" in names else "SC_PHYS_PAGES"
    return float(os.sysconf(pages) * os.sysconf("SC_PAGE_SIZE")) if pages in names else None


def _copy_speed(count: int = 32_000_000) -> float:
    """Bytes per second of a copy, which reads and writes every byte once; the first of two also allocates memory."""
    source = torch.zeros(count, dtype=torch.uint8)
    target = torch.empty_like(source)
    target.copy_(source)
    return 2 * count / _elapsed(lambda: target.copy_(source))


def download_speed(url: str, seconds: float) -> float:
    """Bytes per second from an address, until the download ends or the time is up."""
    if not url.startswith(("http://", "https://")):
        raise FleetError(f"got {url!r}; expected an address with http:// or https:// to measure the bandwidth from.")
    received, started = 0, time.perf_counter()
    try:
        with urllib.request.urlopen(url, timeout=max(1.0, seconds)) as answer:  # noqa: S310  (the scheme is checked)
            while (time.perf_counter() - started < seconds) and (part := answer.read(65536)):
                received += len(part)
    except OSError as error:
        raise FleetError(f"got {url!r}, which cannot be read ({error}); expected a file of a few MB.") from None
    if not received:
        raise FleetError(f"got nothing from {url!r}; expected a file of a few MB to measure the bandwidth with.")
    return received / (time.perf_counter() - started)
