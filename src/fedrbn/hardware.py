"""What this machine offers: cores and an accelerator."""

from __future__ import annotations

import os
from typing import Literal

import torch


def cores() -> int:
    """Processor cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def pick_device(name: Literal["auto", "cpu", "cuda", "mps"]) -> torch.device:
    """The device to compute on; `auto` takes an accelerator if there is one."""
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        return torch.device(next(device for device in ("cuda", "mps", "cpu") if available[device]))
    if not available[name]:
        raise ValueError(
            f"got run.device = {name!r}, which this machine or this build of torch ({torch.__version__}) does not "
            "have; expected an available device. Use run.device = 'cpu' or 'auto'."
        )
    return torch.device(name)
