"""What a client can do in a round, and what one image costs it in forward passes; a backward pass counts as two.

ST 3, PNC 6 (4 if λ = 1, where the clean loss needs no backward), AT with n steps (n + 1)·3 + 3.
"""

from __future__ import annotations

from enum import Enum


class Duty(Enum):
    """What a device does in a round."""

    AT = "AT"
    PART_AT = "fractional AT"
    PNC = "PNC"
    ST = "ST"
    NONE = "left out"


def units(duty: Duty, attack_steps: int, lam: float | None) -> int:
    """The cost of one image in forward passes."""
    forward, backward, attack = _passes(duty, attack_steps, lam)
    return forward + 2 * backward + 3 * attack


def _passes(duty: Duty, attack_steps: int, lam: float | None) -> tuple[int, int, int]:
    """(forward, backward, attack) passes of one image."""
    if duty is Duty.AT:
        return 2, 2, attack_steps
    if duty is Duty.PNC:
        return 2, 1 if lam == 1 else 2, 0
    return 1, 1, 0
