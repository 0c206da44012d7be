"""What this machine offers: cores and an accelerator."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from typing import Literal

import torch

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
"""Parameters of mallopt(3)."""


def cores() -> int:
    """Processor cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def keep_memory() -> None:
    """Let this process keep the memory it frees, for a worker that trains: call it once, at its start.

    By default glibc returns large blocks to the system, and every step faults its gradients' pages in anew (51 MB for
    the Digits network). Other systems' allocators are left as they are.
    """
    if sys.platform.startswith("linux"):
        libc = ctypes.CDLL(None)
        if hasattr(libc, "mallopt"):
            libc.mallopt(_M_MMAP_MAX, 0)
            libc.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)


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


def pick_precision(name: Literal["auto", "bfloat16"] | None, device: torch.device) -> torch.dtype | None:
    """The type that training computes in on this device if it is not float32.

    `auto` takes bfloat16 where the device has instructions for it. `bfloat16` is refused where it has none.
    """
    if name is None:
        return None
    gains: dict[str, Callable[[], bool]] = {
        # oneDNN accepts bfloat16 on any AVX-512 processor, but without these instructions it is several times slower.
        "cpu": lambda: torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported(),
        "cuda": torch.cuda.is_bf16_supported,
        "mps": lambda: True,
    }
    if not gains[device.type]():
        if name == "auto":
            return None
        raise ValueError(
            f"got run.precision = {name!r} on a {device.type} without instructions for it; expected a device that has "
            "them, because it would only be slower. Use run.precision = 'auto', or leave it out."
        )
    return torch.bfloat16
