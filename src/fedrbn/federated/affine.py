"""FedRob (Reisizadeh et al. 2020): training against an affine shift of the client's images, x → Λx + δ.

The map starts at the identity, Λ = I and δ = 0, and belongs to the client. For every batch it climbs the loss, held
back by how far it is from the identity; then the weights descend:

    Λ, δ ← Λ, δ + rate · ∇ [ ℓ_CE(f(x'; BN_a), y) − (γ/2) (‖Λ − I‖² + ‖δ‖²) ],     x' = clip(Λx + δ, [0, 1])
    w    ← w − lr · ∇ ½ { ℓ_CE(f(x; BN_c), y) + ℓ_CE(f(x'; BN_a), y) }

Λ has d² numbers for images of d, which is why this is refused for large images.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from fedrbn.config import ConfigError
from fedrbn.federated.objectives import Objective, evaluating, mean_of_both
from fedrbn.federated.training import Batch, Losses, trained
from fedrbn.nets.dual_bn import DualNet
from fedrbn.types import Branch, Stats, Tensors

LARGEST = 2**30
"""Most bytes that Λ of one client may take: 1 GiB, in memory and again on disk."""


@dataclass(frozen=True)
class AffineMap:
    """x → clip(Λx + δ, [0, 1]) on flattened images."""

    matrix: Tensor
    shift: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """The images that the map makes of x."""
        return (x.flatten(1) @ self.matrix.T + self.shift).clamp(0, 1).reshape(x.shape)


@dataclass(frozen=True)
class AffineTraining:
    """FedRob's training of AT users, with its own loss."""

    rate: float = 0.005
    """Step of Λ and δ."""
    gamma: float = 100.0
    """γ, how strongly they are held at the identity.

    Measured on digits-mini: with 100 the map moves pixels by about 3/255 and robustness gains; from 30 downwards it
    moves them by more than 70/255, and clean accuracy falls by a fifth.
    """

    def __call__(
        self,
        net: DualNet,
        batches: Iterable[Batch],
        objective: Objective,  # noqa: ARG002
        *,
        lr: float,
        memory: Tensors,
        generator: Generator,  # noqa: ARG002
    ) -> tuple[Tensors, float]:
        """See `Training`; remembers Λ and δ."""
        optimizer = torch.optim.SGD(trained(net), lr=lr)
        losses = Losses()
        shift: AffineMap | None = None
        for x, y in batches:
            shift = self.climbed(net, shift or _recalled(memory, x), x, y)
            optimizer.zero_grad()
            losses.add(mean_of_both(net, x, shift(x), y))
            optimizer.step()
        if shift is None:
            return memory, losses.mean()
        return {"matrix": shift.matrix.cpu(), "shift": shift.shift.cpu()}, losses.mean()

    def climbed(self, net: DualNet, shift: AffineMap, x: Tensor, y: Tensor) -> AffineMap:
        """The map after one step up; the network's weights, gradients and statistics stay as they are."""
        matrix, offset = shift.matrix.detach().requires_grad_(), shift.shift.detach().requires_grad_()
        with evaluating(net):
            logits = net(AffineMap(matrix, offset)(x), Branch.NOISED, Stats.FROZEN)
        up, right = torch.autograd.grad(F.cross_entropy(logits, y), (matrix, offset))
        with torch.no_grad():
            away = matrix.clone()
            away.diagonal().sub_(1)
            return AffineMap(
                matrix + self.rate * (up - self.gamma * away), offset + self.rate * (right - self.gamma * offset)
            )


def check_memory(image_shape: tuple[int, int, int]) -> None:
    """Refuse images for which Λ would not fit."""
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
