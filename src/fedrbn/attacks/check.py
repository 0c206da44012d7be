"""Checks what attacks return: always for each image an image, and your own attack once, before anything starts."""

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
    check_returned(found, x, f"attack {name!r}")
    expected = "expected pixels in [0, 1]"
    if not found.isfinite().all():
        raise AttackError(f"got pixels from attack {name!r} that are not all finite; {expected}. Correct the attack.")
    low, high = found.min().item(), found.max().item()
    if low < -1e-5 or high > 1 + 1e-5:
        raise AttackError(
            f"got pixels from {low:.3g} to {high:.3g} from attack {name!r}; {expected}. Clamp them to [0, 1]."
        )


def check_returned(found: object, x: Tensor, attack: str = "the attack") -> None:
    """Raise an error unless an attack has returned an image for each image: a single one would be used for all."""
    if isinstance(found, Tensor) and (found.shape, found.dtype, found.device) == (x.shape, x.dtype, x.device):
        return
    got = f"{list(found.shape)} of {found.dtype}" if isinstance(found, Tensor) else type(found).__name__
    raise AttackError(
        f"got {got} from {attack}; expected pixels {list(x.shape)} of {x.dtype}, one image for each image. Return the "
        "attacked images."
    )
