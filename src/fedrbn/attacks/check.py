"""Checks with one call, before anything starts, that your own attack does what training needs."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from fedrbn.attacks.protocols import Attack
from fedrbn.config.plugins import called
from fedrbn.errors import AttackError


def check_attack(name: str, attack: Attack, loss: Callable[[Tensor], Tensor], x: Tensor, generator: Generator) -> None:
    """Raise an error if an attack fails on these images, or does not return pixels like them."""
    with torch.random.fork_rng(devices=[]):
        found = called("attack", name, attack, loss, x, generator)
    expected = f"expected pixels in [0, 1] of the shape {list(x.shape)}"
    if not isinstance(found, Tensor) or found.shape != x.shape:
        got = list(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise AttackError(f"got {got} from attack {name!r}; {expected}. Return the attacked images.")
    if not found.isfinite().all():
        raise AttackError(f"got pixels from attack {name!r} that are not all finite; {expected}. Correct the attack.")
    low, high = found.min().item(), found.max().item()
    if low < -1e-5 or high > 1 + 1e-5:
        raise AttackError(
            f"got pixels from {low:.3g} to {high:.3g} from attack {name!r}; {expected}. Clamp them to [0, 1]."
        )
