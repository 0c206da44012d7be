"""FedRBN+ without one of its parts: the methods of the experiment `plus-parts`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from fedrbn.attacks import Attack
from fedrbn.federated.methods import METHODS, Method
from fedrbn.federated.objectives import OneStep, Standard
from fedrbn.nets.dual_bn import DualNet
from fedrbn.types import Stats


def without_step(attack: Attack) -> Method:
    """No attack: clean images through both branches, each normalised by the batch's own statistics."""
    return _changed(attack, "without_step", eps=0.0)


def frozen(attack: Attack) -> Method:
    """Attacked images through the estimated BN_a, which stays fixed: PNC with the step."""
    return _changed(attack, "frozen", stats=Stats.FROZEN)


def random_step(attack: Attack) -> Method:
    """A step of the same length with random signs."""
    plus = METHODS["fedrbn+"](attack)
    own = cast(OneStep, plus.calibration)
    noise = RandomStep(own.lam, own.eps, own.box, own.share)
    return replace(plus, name="random_step", calibration=noise)  # type: ignore[arg-type]


def single(attack: Attack) -> Method:
    """One set of statistics for both clean and attacked images; nothing is propagated."""
    return replace(METHODS["fedrbn+"](attack), name="single", dual_bn=False, propagation=None)


def _changed(attack: Attack, name: str, **changes: Any) -> Method:
    plus = METHODS["fedrbn+"](attack)
    return replace(plus, name=name, calibration=replace(plus.calibration, **changes))  # type: ignore[type-var]


@dataclass(frozen=True)
class RandomStep:
    """Noise in place of an attack."""

    lam: float
    eps: float
    box: tuple[float, float]
    share: float

    def __call__(self, net: DualNet, x: Tensor, y: Tensor, generator: Generator) -> float:
        """See `fedrbn.federated.objectives.Objective`."""
        if torch.rand((), generator=generator).item() >= self.share:
            return Standard()(net, x, y, generator)
        signs = 2.0 * torch.randint(0, 2, x.shape, generator=generator) - 1
        noised = (x + self.eps * signs.to(x)).clamp(*self.box)
        clean_logits, noised_logits = net.paired(x, noised, Stats.BATCH, Stats.BATCH)
        clean, other = F.cross_entropy(clean_logits, y), F.cross_entropy(noised_logits, y)
        loss = (1 - self.lam) * clean + self.lam * other
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.item()
