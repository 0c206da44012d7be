"""How a client turns batches into an update: SGD (with FedProx's term), and first-order Per-FedAvg.

A training is a value. Called with a network, batches and an objective, it changes the network's weights in place and
returns what the client remembers until its next round (nothing here; see `free` and `affine`) and the mean loss.
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
    """What a client is to do with its batches in a round."""

    objective: Objective
    """What to minimise; Free AT and FedRob have losses of their own."""
    lr: float
    generator: Generator
    memory: Tensors = field(default_factory=dict)
    """What the client's last call returned."""


class Training(Protocol):
    """One client's local training. Only parameters with `requires_grad` are trained.

    It may say more of itself: `remembers` (True if what it returns is needed in the next round), and `passes` over each
    image, forward and backward, if they are not those of the objective: the paper's count of its cost.
    """

    def __call__(self, net: DualNet, batches: Iterable[Batch], task: LocalTask) -> tuple[Tensors, float]:
        """Train `net` in place; returns (what to remember, mean loss)."""
        ...


@dataclass(frozen=True)
class Sgd:
    """Plain SGD; with `proximal` (FedProx's μ) the gradient μ (w − w_t) of (μ/2)‖w − w_t‖² pulls to the start w_t."""

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
    """The losses of an update; one that is no number ends it, because nothing good can follow."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def add(self, loss: float) -> None:
        """Note the loss of a step."""
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
    """A step of SGD. Making the first `torch.optim` optimizer imports a compiler, for seconds in every worker."""
    for weight in weights:
        if weight.grad is not None:
            weight.sub_(weight.grad, alpha=rate)
