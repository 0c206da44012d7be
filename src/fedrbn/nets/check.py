"""Checks with one pass, before anything starts, that a network does what training needs."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from fedrbn.config.plugins import cause
from fedrbn.errors import NetworkError
from fedrbn.nets.dual_bn import DualNet
from fedrbn.types import Branch, Stats

_USUAL_SIDES = (28, 32, 64, 96, 128, 224, 299)
"""Image sizes that published networks are made for."""


def check_forward(net: DualNet, x: Tensor, classes: int) -> None:
    """Raise an error if a network fails on a batch of training images or does not give finite logits for all classes.

    The pass is a training pass, forward and backward, on a copy: neither statistics nor random state change.
    """
    trial, shape = copy.deepcopy(net).train(), list(x.shape)
    try:
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            logits = trial(x.to(next(net.parameters()).device), Branch.CLEAN, Stats.BATCH)
            if isinstance(logits, Tensor):
                logits.sum().backward()  # type: ignore[no-untyped-call]
    except Exception as error:
        raise NetworkError(
            f"your network failed on {shape}: {cause(error)}. Expected it to take pixels in [0, 1] of this shape "
            f"(images, channels, height, width) and return logits. {_remedy(net, x)}"
        ) from None
    if not isinstance(logits, Tensor):
        raise NetworkError(
            f"your network gives {type(logits).__name__} for {shape}; expected logits [{len(x)}, {classes}]. Return "
            "only the logits."
        )
    if list(logits.shape) != [len(x), classes]:
        raise NetworkError(
            f"your network gives {list(logits.shape)} for {shape}; expected logits [{len(x)}, {classes}], one for each "
            f"of the {classes} classes. Accept the argument num_classes, or give its last layer {classes} outputs."
        )
    if not logits.isfinite().all():
        raise NetworkError(
            f"your network gives logits for {shape} that are not all finite; expected numbers. Check how it normalises "
            "pixels, which are in [0, 1], and how its weights are initialised."
        )


def _remedy(net: DualNet, x: Tensor) -> str:
    """What to do about a network that failed on x: the image size that it takes, if it is a usual one."""
    side = next((side for side in _USUAL_SIDES if _takes(net, x.new_zeros(2, x.shape[1], side, side))), None)
    if side is None:
        return "Correct the network."
    return f"It takes images of {side} x {side} pixels: set data.image_size = {side}, or correct the network."


@torch.no_grad()
def _takes(net: DualNet, x: Tensor) -> bool:
    trial = copy.deepcopy(net).train()
    try:
        with torch.random.fork_rng(devices=[]):
            return isinstance(trial(x.to(next(net.parameters()).device), Branch.CLEAN, Stats.BATCH), Tensor)
    except Exception:
        return False
