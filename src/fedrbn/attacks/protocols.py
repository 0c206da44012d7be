"""The interfaces of attacks: an attack is called with what it may see, pixels in [0, 1] and a random generator.

    Attack         (loss, x, generator)      -> x_adv    sees a loss per sample and its gradient at the input
    LogitsAttack   (logits, x, y, generator) -> x_adv    sees logits and labels

Training uses the first kind, because any objective is a loss (TRADES, adaptive and branch-wise losses). Evaluation
uses the second, because AutoAttack and black-box searches need logits; `Untargeted` converts the first to the second.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from fedrbn.errors import AttackError

Loss: TypeAlias = Callable[[Tensor], Tensor]
"""From pixels [n, …] in [0, 1] to one loss per sample, [n]; the attack maximises it."""

Logits: TypeAlias = Callable[[Tensor], Tensor]
"""From pixels [n, …] in [0, 1] to one score per class, [n, classes]; usually a network in eval mode."""


class Attack(Protocol):
    """An attack on a loss: returns pixels of x's shape and dtype near x at which the loss is larger."""

    def __call__(self, loss: Loss, x: Tensor, generator: torch.Generator) -> Tensor:
        """The adversarial pixels."""
        ...


class LogitsAttack(Protocol):
    """An attack on a classifier: returns pixels of x's shape and dtype that it should no longer classify as y."""

    def __call__(self, logits: Logits, x: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
        """The adversarial pixels."""
        ...


@dataclass(frozen=True)
class Untargeted:
    """Uses an attack on a loss as an attack on a classifier: maximises each sample's cross-entropy with its label."""

    attack: Attack

    def __call__(self, logits: Logits, x: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
        """The adversarial pixels."""
        return self.attack(lambda pixels: F.cross_entropy(logits(pixels), y, reduction="none"), x, generator)


@dataclass(frozen=True)
class Margin:
    """Uses an attack on a loss as an attack on a classifier, with the DLR loss of Croce & Hein 2020.

        (max over i ≠ y of z_i  −  z_y) / (largest z  −  third largest z)

    Scaling or shifting the logits does not change the loss, so saturated logits still have a gradient.
    """

    attack: Attack

    def __call__(self, logits: Logits, x: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
        """The adversarial pixels."""
        return self.attack(lambda pixels: dlr(logits(pixels), y), x, generator)


def dlr(logits: Tensor, y: Tensor) -> Tensor:
    """The DLR loss of each sample; with two classes there is no third logit, and the plain margin is used instead."""
    ranked = logits.sort(1, descending=True).values
    scale = ranked[:, 0] - ranked[:, 2] if logits.shape[1] > 2 else torch.ones_like(ranked[:, 0])
    return margin(logits, y) / scale.clamp_min(torch.finfo(logits.dtype).tiny)


def margin(logits: Tensor, y: Tensor) -> Tensor:
    """For each sample, the logit of the most likely wrong class minus that of the true class."""
    true = logits.gather(1, y[:, None])[:, 0]
    return logits.scatter(1, y[:, None], -torch.inf).amax(1) - true


def check_pixels(x: Tensor) -> None:
    """Raise an error unless x is float pixels in [0, 1]: with normalised inputs, ε would mean something else."""
    if not x.is_floating_point():
        raise AttackError(
            f"got images of {x.dtype}; expected floating-point pixels in [0, 1]. Convert bytes with x.float() / 255."
        )
    if x.numel() and not bool((x.min() >= 0) & (x.max() <= 1)):
        raise AttackError(
            f"got pixels from {x.min().item():g} to {x.max().item():g}; expected [0, 1], where ε is measured. "
            "Normalise inside the network, not before the attack."
        )


def check_images(x: Tensor) -> None:
    """Raise an error unless x is a batch of images with pixels in [0, 1]."""
    check_pixels(x)
    if x.ndim != 4:
        raise AttackError(f"got pixels of shape {tuple(x.shape)}; expected [n, channels, height, width]. Reshape them.")
