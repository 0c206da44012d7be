"""What a client minimises on one batch: Algorithm 1's losses for AT and ST users, and the PNC loss (Eq. 5).

An objective is a value. Called with a network and a batch, it adds the gradient of its loss to the parameters'
`.grad` and returns the loss; which statistics move is part of the objective.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from fedrbn.attacks import Attack
from fedrbn.nets.dual_bn import DualNet
from fedrbn.types import Branch, Stats


class Objective(Protocol):
    """One batch's loss and gradient."""

    def __call__(self, net: DualNet, x: Tensor, y: Tensor, generator: Generator) -> float:
        """Add the gradient on pixels x and labels y to the parameters' `.grad`; return the loss."""
        ...


@dataclass(frozen=True)
class Standard:
    """Standard training: ℓ_CE(f(x; BN_c), y). Moves BN_c."""

    def __call__(self, net: DualNet, x: Tensor, y: Tensor, generator: Generator) -> float:  # noqa: ARG002
        """See `Objective`."""
        loss = F.cross_entropy(net(x, Branch.CLEAN, Stats.BATCH), y)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.item()


@dataclass(frozen=True)
class Adversarial:
    """Adversarial training, Algorithm 1 line 6: ½ {ℓ_CE(f(x; BN_c), y) + ℓ_CE(f(x̃; BN_a), y)}. Moves both branches.

    x̃ is found through BN_a with its running statistics frozen, so the attack itself moves nothing.
    """

    attack: Attack

    def __call__(self, net: DualNet, x: Tensor, y: Tensor, generator: Generator) -> float:
        """See `Objective`."""

        def noised_loss(z: Tensor) -> Tensor:
            return F.cross_entropy(net(z, Branch.NOISED, Stats.FROZEN), y, reduction="none")

        with evaluating(net):
            noised = self.attack(noised_loss, x, generator)
        clean_logits, noised_logits = net.paired(x, noised, Stats.BATCH, Stats.BATCH)
        loss = (F.cross_entropy(clean_logits, y) + F.cross_entropy(noised_logits, y)) / 2
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.item()


@dataclass(frozen=True)
class Calibrated:
    """Eq. 5, pseudo-noise calibration: (1 − λ) ℓ_CE(f(x; BN_c), y) + λ ℓ_CE(f(x; BN_a), y). Moves BN_c only.

    BN_a is the estimate of Eq. 3 and stays frozen; the gradient still reaches θ through it. With `clip` (Algorithm 3)
    the gradient of the second term is scaled down to that norm before the first is added.
    """

    lam: float
    clip: float | None = None

    def __call__(self, net: DualNet, x: Tensor, y: Tensor, generator: Generator) -> float:
        """See `Objective`. Each λ takes the cheapest path that it allows."""
        if self.lam == 0:
            return Standard()(net, x, y, generator)
        if self.lam < 1 and self.clip is None:
            return self._joined(net, x, y)
        calibration = self.lam * F.cross_entropy(net(x, Branch.NOISED, Stats.FROZEN), y)
        calibration.backward()  # type: ignore[no-untyped-call]
        if self.clip is not None:
            clamp(net.parameters(), self.clip)
        if self.lam == 1:  # BN_c's statistics still follow the data, but a zero-weighted loss is not worth a backward
            with torch.no_grad():
                net(x, Branch.CLEAN, Stats.BATCH)
            return calibration.item()
        clean = (1 - self.lam) * F.cross_entropy(net(x, Branch.CLEAN, Stats.BATCH), y)
        clean.backward()  # type: ignore[no-untyped-call]
        return calibration.item() + clean.item()

    def _joined(self, net: DualNet, x: Tensor, y: Tensor) -> float:
        clean_logits, noised_logits = net.paired(x, x, Stats.BATCH, Stats.FROZEN)
        clean, noised = F.cross_entropy(clean_logits, y), F.cross_entropy(noised_logits, y)
        loss = (1 - self.lam) * clean + self.lam * noised
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.item()


def clamp(parameters: Iterable[nn.Parameter], largest: float) -> None:
    """CLAMP of Algorithm 3: scale the whole gradient g to largest · g / ‖g‖ if its norm is above `largest`."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    norm = torch.nn.utils.get_total_norm(gradients)
    if norm > largest:
        for gradient in gradients:
            gradient.mul_(largest / norm)


@contextmanager
def evaluating(net: nn.Module) -> Iterator[None]:
    """Within this block the network's other layers (dropout and the like) behave as at test time."""
    training = [module for module in net.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True
