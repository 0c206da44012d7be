"""The cost of one image for a client with a duty, in forward passes; a backward pass counts as two.

ST 3, PNC 6 (4 if λ = 1, where the clean loss needs no backward), AT with n steps (n + 1)·3 + 3.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedrbn.types import Duty, Role

PLAIN = Duty(lam=0.0)
"""Standard training without calibration: the reference for every other duty."""


@dataclass(frozen=True)
class Passes:
    """Passes of one image; an attack's step is a forward and a backward pass."""

    forward: float
    backward: float
    attack: float

    @property
    def units(self) -> float:
        """In forward passes."""
        return self.forward + 2 * self.backward + 3 * self.attack


def passes(duty: Duty, attack_steps: int) -> Passes:
    """The mean cost of one image over batches; a duty without λ counts as plain standard training."""
    if duty.role is Role.AT:
        share = duty.at_share  # the other batches are standard training: one pass forward and one back
        return Passes(1 + share, 1 + share, share * attack_steps)
    if not duty.lam:
        return Passes(1, 1, 0)
    return Passes(2, 1 if duty.lam == 1 else 2, 0)


def units(duty: Duty, attack_steps: int) -> float:
    """The cost of one image in forward passes."""
    return passes(duty, attack_steps).units
