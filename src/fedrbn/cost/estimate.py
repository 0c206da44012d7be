"""How long a run will take, from a few measured steps on this machine."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from fedrbn.cost.count import duties
from fedrbn.cost.units import PLAIN
from fedrbn.federated.assemble import Assembly
from fedrbn.federated.client import steps_per_epoch
from fedrbn.federated.objectives import evaluating
from fedrbn.federated.training.sgd import LocalTask
from fedrbn.hardware import cores, one_thread
from fedrbn.randomness import generator
from fedrbn.types import Branch, Duty, Role, Stats

_WORKER_SECONDS = 4.0
"""CPU time that a worker process needs to import PyTorch and this package."""


_LONG = 2.0
"""Seconds after which the warming-up no longer counts, so that a call need not be repeated to be measured."""


@dataclass(frozen=True)
class Estimate:
    """Predicted seconds of the parts of a run, if the load of the machine stays the same."""

    startup: float
    """Until all workers have started."""
    training: float
    """All remaining rounds, with their validation."""
    evaluation: float
    """Evaluation of the chosen state on the test images under attack, including adaptive attacks."""

    @property
    def total(self) -> float:
        """Seconds until the end of the run."""
        return self.startup + self.training + self.evaluation


def estimate(assembly: Assembly, finished: int = 0) -> Estimate:
    """How long the rest of the run will take, after `finished` rounds."""
    step = {duty: _step_seconds(assembly, duty) for duty in duties(assembly.plan)}
    image, gradient = _pass_seconds(assembly)
    attack = gradient * assembly.experiment.attack.steps + image
    train, workers = assembly.experiment.train, assembly.workers
    training = sum(
        step[m.duty] * (steps or train.local_epochs * steps_per_epoch(m.samples, train.batch_size))
        for number in range(finished, assembly.plan.schedule.rounds)
        for steps in (assembly.plan.schedule.steps(number),)
        for m in assembly.plan.schedule.sample(number)
    )
    clients = assembly.federation.clients
    validation = sum(len(c.validation) * (attack if c.role is Role.AT else image) for c in clients)
    validations = math.ceil((assembly.plan.schedule.rounds - finished) / train.validate_every)
    branches = len(assembly.plan.method.branches)
    # Each branch is attacked separately. The adaptive adversary also tries the other branch, and both at once.
    attacks = branches if branches == 1 else branches + (branches - 1) + branches
    evaluation = sum(len(c.test) for c in clients) * attacks * (attack + image)
    return Estimate(
        startup=0.0 if workers == 1 else _WORKER_SECONDS * math.ceil(workers / cores()),
        training=(training + validations * validation) / workers,
        evaluation=evaluation / workers + sum(step.values()),  # plus the trial that counts operations
    )


def _step_seconds(assembly: Assembly, duty: Duty) -> float:
    """Seconds of one training step with this duty, on a copy of the network: half of two, because some need pairs.

    If a share of the batches is adversarial, it is the weighted mean of an adversarial and a standard step.
    """
    if 0 < duty.at_share < 1:
        whole, plain = _step_seconds(assembly, Role.AT.duty), _step_seconds(assembly, PLAIN)
        return duty.at_share * whole + (1 - duty.at_share) * plain
    net = copy.deepcopy(assembly.net)
    client = assembly.federation.clients[0]
    x, y = client.train.pixels(slice(0, assembly.experiment.train.batch_size))
    method, random = assembly.plan.method, generator(0, "estimate")
    device = next(net.parameters()).device
    two = [(x.to(device), y.to(device))] * 2
    train, objective = method.training_of(duty.role), method.objective(duty, calibrate=True)
    return _shortest(lambda: train(net, two, LocalTask(objective, 1e-9, random))) / 2


def _pass_seconds(assembly: Assembly) -> tuple[float, float]:
    """Seconds per image of a forward pass, and of a pass forward and back to the pixels."""
    net, images = assembly.net, assembly.federation.clients[0].test
    x = images.pixels(slice(0, 32))[0].to(next(net.parameters()).device)

    def forward() -> Tensor:
        return cast(Tensor, net(x, Branch.CLEAN, Stats.FROZEN))

    with evaluating(net):
        with torch.no_grad():
            image = _shortest(forward)
        x.requires_grad_()
        return image / len(x), _shortest(lambda: torch.autograd.grad(forward().sum(), x)) / len(x)


def _shortest(action: Callable[[], object]) -> float:
    """Seconds of the faster of two calls with one thread; the first also warms up, and is enough if it is long."""
    times: list[float] = []
    with one_thread():
        while len(times) < 2 and sum(times) < _LONG:
            started = time.perf_counter()
            action()
            times.append(time.perf_counter() - started)
    return min(times)
