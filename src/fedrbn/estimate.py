"""How long a run will take, from a few measured steps on this machine."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable

import torch

from fedrbn.assembly import Assembly
from fedrbn.federated.client import steps_per_epoch
from fedrbn.federated.executors import one_thread
from fedrbn.federated.objectives import evaluating
from fedrbn.randomness import generator
from fedrbn.types import Branch, Role, Stats


def estimate_seconds(assembly: Assembly, finished: int = 0) -> float:
    """Predicted seconds until the end of the run, validation and evaluation included, if the machine is not busy."""
    step = {role: _step_seconds(assembly, role) for role in {member.role for member in assembly.plan.members}}
    image = _forward_seconds(assembly)
    attack = image * (3 * assembly.experiment.attack.steps + 1)
    train, members = assembly.experiment.train, assembly.plan.members
    share = (assembly.plan.participants or len(members)) / len(members)
    fixed = assembly.plan.steps()
    training = share * sum(
        step[m.role] * (fixed or train.local_epochs * steps_per_epoch(m.samples, train.batch_size)) for m in members
    )
    clients = assembly.federation.clients
    validation = sum(len(c.validation) * (attack if c.role is Role.AT else image) for c in clients)
    evaluation = sum(len(c.test) for c in clients) * (attack + image) * len(assembly.plan.method.branches)
    left = train.rounds - finished
    validations = math.ceil(left / train.validate_every)
    return (left * training + validations * validation + evaluation) / assembly.workers


def as_text(seconds: float) -> str:
    """Seconds in words: 40 s, 12 min, 3.5 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def _step_seconds(assembly: Assembly, role: Role) -> float:
    """One training step of a client of this role, on a copy of the network."""
    net = copy.deepcopy(assembly.net)
    client = next(c for c in assembly.federation.clients if c.role is role)
    x, y = client.train.pixels(slice(0, assembly.experiment.train.batch_size))
    objective = assembly.plan.method.objective(role, calibrate=True)
    random = generator(0, "estimate")
    device = next(net.parameters()).device
    return _shortest(lambda: objective(net, x.to(device), y.to(device), random))


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
