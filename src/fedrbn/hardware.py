"""What this machine offers: cores and an accelerator."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Literal

import torch

from fedrbn.errors import HardwareError

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
"""Parameters of mallopt(3)."""
_USUAL = {_M_MMAP_MAX: 65536, _M_TRIM_THRESHOLD: 128 * 1024}
"""Their defaults in glibc."""


def cores() -> int:
    """Processor cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread within this block, whatever the environment variables say.

    The threads of a server would compete with its busy workers, and sums must not depend on the number of cores.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def keep_memory() -> None:
    """Let this process keep the memory it frees. A worker that trains calls this once, when it starts.

    By default glibc returns large blocks to the system, so every step has to fault in the pages of its gradients again
    (51 MB for the Digits network). Allocators of other systems are not changed.
    """
    _mallopt({_M_MMAP_MAX: 0, _M_TRIM_THRESHOLD: 2**31 - 1})


@contextmanager
def kept_memory() -> Iterator[None]:
    """Keep freed memory within this block, for training in the caller's process; it is released at the end."""
    keep_memory()
    try:
        yield
    finally:
        libc = _mallopt(_USUAL)
        if libc is not None:
            libc.malloc_trim(0)


def _mallopt(parameters: dict[int, int]) -> ctypes.CDLL | None:
    """Set parameters of glibc's allocator; None with another C library."""
    libc = ctypes.CDLL(None) if sys.platform.startswith("linux") else None
    if libc is None or not (hasattr(libc, "mallopt") and hasattr(libc, "malloc_trim")):
        return None
    for parameter, value in parameters.items():
        libc.mallopt(parameter, value)
    return libc


def pick_device(name: Literal["auto", "cpu", "cuda", "mps"]) -> torch.device:
    """The device to compute on; `auto` takes an accelerator if there is one."""
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        return torch.device(next(device for device in ("cuda", "mps", "cpu") if available[device]))
    if not available[name]:
        raise HardwareError(
            f"got run.device = {name!r}, which this machine or this build of torch ({torch.__version__}) does not "
            "have; expected an available device. Use run.device = 'cpu' or 'auto'."
        )
    return torch.device(name)


def pick_precision(name: Literal["auto", "bfloat16"] | None, device: torch.device) -> torch.dtype | None:
    """The type that training computes in on this device if it is not float32.

    `auto` takes bfloat16 where it is clearly faster. `bfloat16` is refused where the device cannot compute in it.
    """
    if name is None:
        return None
    gains: dict[str, Callable[[], float]] = {
        "cpu": bfloat16_gain,
        "cuda": lambda: 2.0 if torch.cuda.is_available() and torch.cuda.is_bf16_supported() else 0.0,
        "mps": lambda: 2.0,
    }
    gain = gains[device.type]()
    if name == "auto":
        return torch.bfloat16 if gain >= _WORTH_IT else None
    if gain == 0:
        raise HardwareError(
            f"got run.precision = {name!r} on a {device.type} without working bfloat16 instructions; expected a device "
            "that has them. Use run.precision = 'auto', or leave it out."
        )
    return torch.bfloat16


@cache
def bfloat16_gain() -> float:
    """How many times as fast as float32 this processor multiplies in bfloat16; 0 if it cannot.

    A separate process measures it: virtual machines may announce instructions (AMX) that crash a process which uses
    them. Processors with only AVX512-BF16 range from slower than float32 to twice as fast.
    """
    # oneDNN accepts bfloat16 on any AVX-512 processor, but without these instructions it is several times slower.
    if not (torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()):
        return 0.0
    try:
        tried = subprocess.run(  # noqa: S603  (no part of it is user input)
            [sys.executable, "-c", _TRIAL], capture_output=True, text=True, check=True, timeout=_TRIAL_SECONDS
        )
        return float(tried.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return 0.0


_WORTH_IT = 1.2
"""Below this gain, rounding to 8 binary digits is not worth the time it saves."""
_TRIAL_SECONDS = 60
_TRIAL = """
import time
import torch
torch.set_num_threads(1)

def seconds(layer, x):
    layer(x).sum().backward()
    return min(measured(layer, x) for _ in range(5))

def measured(layer, x):
    start = time.perf_counter()
    layer(x).sum().backward()
    return time.perf_counter() - start

def times(dtype):
    convolution = torch.nn.Conv2d(64, 64, 5, padding=2).to(dtype=dtype, memory_format=torch.channels_last)
    images = torch.ones(16, 64, 14, 14, dtype=dtype).to(memory_format=torch.channels_last).requires_grad_()
    linear = torch.nn.Linear(2048, 1024).to(dtype)
    return seconds(convolution, images) + seconds(linear, torch.ones(32, 2048, dtype=dtype).requires_grad_())

print(times(torch.float32) / times(torch.bfloat16))
"""
