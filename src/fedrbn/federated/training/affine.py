"""FedRob (Reisizadeh et al. 2020): training against an affine shift of the client's images, x → Λx + δ.

    min_w max_{Λ, δ}  ℓ_CE(f(x'), y) − (γ/2) (‖Λ − I‖² + ‖δ‖²),     x' = clip(Λx + δ, [0, 1])

The map starts at the identity, Λ = I and δ = 0. Each client has its own and keeps it from batch to batch and from round
to round. On every batch the map takes n ascent steps, then the weights take one descent step, on the shifted images:

    Λ, δ ← Λ, δ + rate · ∇ [ ℓ_CE(f(x'), y) − (γ/2) (‖Λ − I‖² + ‖δ‖²) ]      n times
    w    ← w − lr · ∇ ℓ_CE(f(x'), y)

Λ has d² numbers for images of d values, so large images are an error.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from fedrbn.errors import ConfigError
from fedrbn.federated.objectives import evaluating
from fedrbn.federated.training.sgd import Batch, LocalTask, Losses, trained
from fedrbn.nets.dual_bn import DualNet
from fedrbn.types import Branch, Stats, Tensors

LARGEST = 2**30
"""Maximum bytes of Λ for one client: 1 GiB, in memory and again on disk."""


@dataclass(frozen=True)
class AffineMap:
    """x → clip(Λx + δ, [0, 1]) on flattened images."""

    matrix: Tensor
    shift: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """The mapped images."""
        return self.moved(x).clamp(0, 1).reshape(x.shape)

    def moved(self, x: Tensor) -> Tensor:
        """Λx + δ, flattened and not clipped."""
        return x.flatten(1) @ self.matrix.T + self.shift


@dataclass(frozen=True)
class AffineTraining:
    """FedRob's training of AT users, with its own loss: the loss of the shifted images."""

    rate: float = 0.00167
    """Step size of Λ and δ; without a gradient, a step goes the fraction rate · γ of the way back to the identity."""
    gamma: float = 300.0
    """γ, how strongly Λ and δ are held at the identity.

    With 300 the map moves the pixels of a coloured domain by about as much as ε = 8/255 allows an attack; with 100 by
    three to four times as much. docs/choices.md has the measurement.
    """
    steps: int = 7
    """n, ascent steps per batch. With 7 the cost is that of PGD with 7 steps, as T = 7.4 in the paper's table says."""
    remembers: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ConfigError(f"got method.affine_steps = {self.steps}; expected at least 1. The usual number is 7.")

    @property
    def passes(self) -> int:
        """One for each ascent step, which counts like an attack step, and one for the weights."""
        return self.steps + 1

    def __call__(self, net: DualNet, batches: Iterable[Batch], task: LocalTask) -> tuple[Tensors, float]:
        """See `Training`; remembers Λ and δ."""
        optimizer = torch.optim.SGD(trained(net), lr=task.lr)
        losses = Losses()
        shift: AffineMap | None = None
        for x, y in batches:
            shift = self.climbed(net, shift or _recalled(task.memory, x), x, y)
            optimizer.zero_grad()
            loss = F.cross_entropy(net(shift(x), Branch.NOISED, Stats.BATCH), y)
            loss.backward()  # type: ignore[no-untyped-call]
            losses.add(loss.item())
            optimizer.step()
        if shift is None:
            return task.memory, losses.mean()
        return {"matrix": shift.matrix.cpu(), "shift": shift.shift.cpu()}, losses.mean()

    def climbed(self, net: DualNet, shift: AffineMap, x: Tensor, y: Tensor) -> AffineMap:
        """The map after all ascent steps; the network's weights, gradients and statistics do not change."""
        with evaluating(net):
            for _ in range(self.steps):
                shift = self._step(net, shift, x, y)
        return shift

    def _step(self, net: DualNet, shift: AffineMap, x: Tensor, y: Tensor) -> AffineMap:
        """One ascent step. With g = ∂ℓ/∂(Λx + δ) the gradients are Σ g xᵀ and Σ g, so Λ is read and written once."""
        moved = shift.moved(x).requires_grad_()
        logits = net(moved.clamp(0, 1).reshape(x.shape), Branch.NOISED, Stats.FROZEN)
        (g,) = torch.autograd.grad(F.cross_entropy(logits, y), moved)
        pull = self.rate * self.gamma
        matrix = torch.addmm(shift.matrix, g.T, x.flatten(1), beta=1 - pull, alpha=self.rate)
        matrix.diagonal().add_(pull)
        return AffineMap(matrix, (1 - pull) * shift.shift + self.rate * g.sum(0))


def check_memory(image_shape: tuple[int, int, int]) -> None:
    """Raise an error for images whose Λ would be too large."""
    size = math.prod(image_shape)
    needed = 4 * size**2
    if needed > LARGEST:
        side = math.isqrt(math.isqrt(LARGEST // 4) // image_shape[0])
        raise ConfigError(
            f"got images of {' × '.join(map(str, image_shape))} for method 'fedrob', whose matrix Λ would have "
            f"{size:,}² numbers and need {needed:,} bytes ({needed / 2**30:.1f} GiB) for each AT user; expected at "
            f"most {LARGEST / 2**30:g} GiB. Set data.image_size to {side} or less, or choose another method."
        )


def _recalled(memory: Tensors, x: Tensor) -> AffineMap:
    if memory:
        return AffineMap(memory["matrix"].to(x), memory["shift"].to(x))
    size = x[0].numel()
    return AffineMap(torch.eye(size).to(x), x.new_zeros(size))
