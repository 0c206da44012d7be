"""Free adversarial training (Shafahi et al. 2019): one backward pass gives the gradients of the attack and the weights.

Every batch is replayed m times. One forward and one backward pass of ℓ_CE(f(x + δ), y) give both the step of the
weights and the step of the perturbation,

    δ ← clip(δ + ε · sign(∇_x ℓ), ±ε),    pixels x + δ clipped to the box,

and δ is carried over to the next replay, the next batch and, in the client's memory, the next round: one slice for each
position in a batch, whichever image is there. A round costs m times as much as standard training, so there are m times
fewer rounds (`Schedule.rounds`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from fedrbn.errors import ConfigError
from fedrbn.federated.training.sgd import Batch, LocalTask, Losses, trained
from fedrbn.nets.dual_bn import DualNet
from fedrbn.types import Branch, Stats, Tensors


@dataclass(frozen=True)
class Free:
    """Free AT with its own loss: the cross-entropy of the perturbed images only, as in the original."""

    eps: float
    replays: int = 4
    """m; the FedRBN authors' released code uses 4. The authors of Free AT recommend 8 for ε = 8/255."""
    box: tuple[float, float] = (0.0, 1.0)
    remembers: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.replays < 1:
            raise ConfigError(f"got method.replays = {self.replays}; expected at least 1. Usual values are 4 and 8.")

    @property
    def passes(self) -> int:
        """One for each replay: the weights' backward pass also gives the step of the noise."""
        return self.replays

    def __call__(self, net: DualNet, batches: Iterable[Batch], task: LocalTask) -> tuple[Tensors, float]:
        """See `Training`; remembers the noise."""
        optimizer = torch.optim.SGD(trained(net), lr=task.lr)
        losses = Losses()
        noise = task.memory.get("noise")
        for x, y in batches:
            noise = _slots(noise, x)
            mine = noise[: len(x)]  # a view, so changes are carried over
            for _ in range(self.replays):
                noised = (x + mine).clamp(*self.box).requires_grad_()
                optimizer.zero_grad()
                loss = F.cross_entropy(net(noised, Branch.NOISED, Stats.BATCH), y)
                loss.backward()  # type: ignore[no-untyped-call]
                losses.add(loss.item())
                if noised.grad is not None:
                    mine.add_(noised.grad.sign(), alpha=self.eps).clamp_(-self.eps, self.eps)
                optimizer.step()
        return {} if noise is None else {"noise": noise.cpu()}, losses.mean()


def _slots(noise: Tensor | None, x: Tensor) -> Tensor:
    """A copy of the noise with at least one slice per image of x; new slices are zero."""
    if noise is None:
        return torch.zeros_like(x)
    new = x.new_zeros((max(0, len(x) - len(noise)), *x.shape[1:]))
    return torch.cat([noise.to(x), new])
