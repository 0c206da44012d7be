"""How a client turns batches into an update: SGD (with FedProx's term), and first-order Per-FedAvg.

A training is a value. Called with a network, batches and a task, it changes the network's weights in place and returns
what the client remembers until its next round (nothing here; see `free` and `affine`) and the mean loss.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import torch
from torch import Generator, Tensor, nn

from fedrbn.federated.objectives import Objective
from fedrbn.nets.dual_bn import DualNet
from fedrbn.types import Tensors

Batch: TypeAlias = tuple[Tensor, Tensor]
"""Pixels in [0, 1] and labels."""


@dataclass(frozen=True)
class LocalTask:
    """What a client does with its batches in a round."""

    objective: Objective
    """What to minimise; Free AT and FedRob have their own losses."""
    lr: float
    generator: Generator
    memory: Tensors = field(default_factory=dict)
    """What the client's previous call returned."""


class Training(Protocol):
    """One client's local training. Only parameters with `requires_grad` are trained.

    Optional attributes: `remembers` is True if the next round needs what it returns. `passes` is the number of forward
    and backward passes over each image, if it differs from that of the objective; the paper counts cost this way.
    """

    def __call__(self, net: DualNet, batches: Iterable[Batch], task: LocalTask) -> tuple[Tensors, float]:
        """Train `net` in place; returns (what to remember, mean loss)."""
        ...


@dataclass(frozen=True)
class Sgd:
    """Plain SGD; with `proximal` (FedProx's μ), the gradient μ (w − w_t) of (μ/2)‖w − w_t‖² is added."""

    proximal: float = 0.0

    def __call__(self, net: DualNet, batches: Iterable[Batch], task: LocalTask) -> tuple[Tensors, float]:
        """See `Training`."""
        weights = trained(net)
        start = [weight.detach().clone() for weight in weights] if self.proximal else []
        losses = Losses()
        for batch in batches:
            losses.add(gradient(net, batch, task.objective, task.generator))
            with torch.no_grad():
                for weight, origin in zip(weights, start, strict=False):
                    if weight.grad is not None:
                        weight.grad.add_(weight - origin, alpha=self.proximal)
            descend(weights, task.lr)
        return task.memory, losses.mean()


class Losses:
    """The losses of an update; a NaN or infinite loss ends it with an error."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def add(self, loss: float) -> None:
        """Record the loss of a step."""
        self.values.append(loss)
        if not math.isfinite(loss):
            raise FloatingPointError(
                f"got loss {loss} at step {len(self.values)}; expected a number. Training has diverged: lower "
                "train.lr, or with fedrbn clip the calibration gradient (method.clip=10)."
            )

    def mean(self) -> float:
        """Their mean."""
        return sum(self.values) / len(self.values)


def trained(net: DualNet) -> list[nn.Parameter]:
    """The parameters that this client may change."""
    return [parameter for parameter in net.parameters() if parameter.requires_grad]


def gradient(net: DualNet, batch: Batch, objective: Objective, generator: Generator) -> float:
    """Set `.grad` to the gradient on this batch; returns the loss."""
    net.zero_grad()
    return objective(net, *batch, generator)


@torch.no_grad()
def descend(weights: list[nn.Parameter], rate: float) -> None:
    """A step of SGD. Not with `torch.optim`: its first optimizer imports a compiler, which takes seconds per worker."""
    for weight in weights:
        if weight.grad is not None:
            weight.sub_(weight.grad, alpha=rate)
