"""Check the memory for images before they are created: images that do not fit are refused."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedrbn.errors import DataError

_ALWAYS = 256 * 2**20
"""Bytes that are always allowed: a machine without them cannot train either."""
_COPIES = 2
"""Images are in memory twice: as created, and in the channel order that networks need."""


def empty_images(count: int, side: int) -> NDArray[np.uint8]:
    """Memory for uint8 RGB images [count, side, side, 3]; refused if the machine does not have enough free."""
    check_memory(count, side)
    return np.empty((count, side, side, 3), np.uint8)


def check_memory(count: int, side: int) -> None:
    """Refuse `count` RGB images of side x side pixels if they do not fit into memory."""
    needed = _COPIES * 3 * count * side**2
    free = available_memory()
    if needed <= _ALWAYS or free is None or needed <= free:
        return
    raise DataError(
        f"got {count:,} images of {side} x {side} pixels, which need {needed / 2**30:.1f} GiB of memory; expected at "
        f"most the {free / 2**30:.1f} GiB that are free. Set image_size to at most "
        f"{math.isqrt(free // (_COPIES * 3 * count))}, or use fewer images."
    )


def available_memory() -> int | None:
    """Bytes of available memory; None if the system does not tell (only Linux does)."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    found = {name: amount.split() for name, _, amount in (line.partition(":") for line in lines)}
    return int(found["MemAvailable"][0]) * 1024 if "MemAvailable" in found else None
