"""Durations as readable text."""

from __future__ import annotations

_UNITS = (("d", 86400), ("h", 3600), ("min", 60))


def duration(seconds: float) -> str:
    """A rounded duration: 40 s, 12 min, 3.5 h, 2 d. A unit is used from 1.5 of it upwards."""
    for unit, size in _UNITS:
        if seconds >= 1.5 * size:
            digits = 0 if unit == "min" else 1
            return f"{seconds / size:.{digits}f}".removesuffix(".0") + f" {unit}"
    return f"{seconds:.0f} s"
