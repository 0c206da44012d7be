"""How long a run will take, from a few measured steps on this machine."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable

import torch

from fedrbn.federated.assemble import Assembly
from fedrbn.federated.client import steps_per_epoch
from fedrbn.federated.objectives import evaluating
from fedrbn.hardware import one_thread
from fedrbn.randomness import generator
from fedrbn.types import Branch, Role, Stats


def estimate_seconds(assembly: Assembly, finished: int = 0) -> float:
    """Predicted seconds until the end of the run, validation and evaluation included, if the machine is not busy."""
    step = {role: _step_seconds(assembly, role) for role in {member.role for member in assembly.plan.members}}
    image = _forward_seconds(assembly)
    attack = image * (3 * assembly.experiment.attack.steps + 1)
    train = assembly.experiment.train
    training = sum(
        step[m.role] * (steps or train.local_epochs * steps_per_epoch(m.samples, train.batch_size))
        for number in range(finished, assembly.plan.rounds)
        for steps in (assembly.plan.steps(number),)
        for m in assembly.plan.sample(number)
    )
    clients = assembly.federation.clients
    validation = sum(len(c.validation) * (attack if c.role is Role.AT else image) for c in clients)
    evaluation = sum(len(c.test) for c in clients) * (attack + image) * len(assembly.plan.method.branches)
    validations = math.ceil((assembly.plan.rounds - finished) / train.validate_every)
    return (training + validations * validation + evaluation) / assembly.workers


def _step_seconds(assembly: Assembly, role: Role) -> float:
    """One training step of a client of this role, on a copy of the network: half of two, because some need pairs."""
    net = copy.deepcopy(assembly.net)
    client = next(c for c in assembly.federation.clients if c.role is role)
    x, y = client.train.pixels(slice(0, assembly.experiment.train.batch_size))
    method, random = assembly.plan.method, generator(0, "estimate")
    device = next(net.parameters()).device
    two = [(x.to(device), y.to(device))] * 2
    train, objective = method.training_of(role), method.objective(role, calibrate=True)
    return _shortest(lambda: train(net, two, objective, lr=1e-9, memory={}, generator=random)) / 2


def _forward_seconds(assembly: Assembly) -> float:
    """One forward pass, per image."""
    net, images = assembly.net, assembly.federation.clients[0].test
    x = images.pixels(slice(0, 64))[0].to(next(net.parameters()).device)
    with torch.no_grad(), evaluating(net):
        return _shortest(lambda: net(x, Branch.CLEAN, Stats.FROZEN)) / len(x)


def _shortest(action: Callable[[], object]) -> float:
    """Seconds of the faster of two calls with one thread; the first also warms up."""
    times = []
    with one_thread():
        for _ in range(2):
            started = time.perf_counter()
            action()
            times.append(time.perf_counter() - started)
    return min(times)
