"""The types that every part of the package shares: duties and roles, branches of batch norm, federation members."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, TypeAlias

from fedrbn.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor


Tensors: TypeAlias = "dict[str, Tensor]"
"""Named tensors: a part of a network's state."""


class Role(Enum):
    """What a client can afford: adversarial training (S in the paper) or standard training only (T)."""

    AT = "AT"
    ST = "ST"

    @property
    def duty(self) -> Duty:
        """What every client of this role does in the paper."""
        return Duty(at_share=1.0) if self is Role.AT else Duty()


@dataclass(frozen=True)
class Duty:
    """What a client does with its batches: AT on all, on a share or on none of them; without AT, PNC with its own λ.

    The paper's two roles are two duties, `Role.AT.duty` and `Role.ST.duty`. A client that trains any share
    adversarially is an AT user: it trains its own BN_a and donates it.
    """

    at_share: float = 0.0
    """The probability that a batch is adversarial; the other batches of an AT user are standard training."""
    lam: float | None = None
    """λ of Eq. 5, for a client without AT: 0 is plain standard training, None uses the method's λ."""

    def __post_init__(self) -> None:
        for name, value in (("at_share", self.at_share), ("lam", self.lam)):
            if value is not None and not 0 <= value <= 1:
                raise ConfigError(f"got a duty with {name} = {value}; expected a number from 0 to 1.")
        if self.at_share and self.lam is not None:
            raise ConfigError(
                f"got a duty with at_share = {self.at_share:g} and lam = {self.lam:g}; expected one of them: a client "
                "that trains adversarially has its own BN_a and does not calibrate. Leave lam out."
            )

    @property
    def role(self) -> Role:
        """AT for any adversarial share, else ST."""
        return Role.AT if self.at_share else Role.ST

    def __str__(self) -> str:
        if 0 < self.at_share < 1:
            return f"AT on {100 * self.at_share:g} %"
        if self.lam is None:
            return self.role.value
        return f"PNC, λ = {self.lam:g}" if self.lam else "plain ST"


class Branch(Enum):
    """Which batch-norm statistics a forward pass goes through: BN_c for clean inputs, BN_a for adversarial ones."""

    CLEAN = "clean"
    NOISED = "noised"


class Stats(Enum):
    """What a forward pass does with the statistics of its branch."""

    BATCH = "batch"
    """Normalise by the batch's own mean and variance, and move the running statistics towards them."""
    FROZEN = "frozen"
    """Normalise by the running statistics and leave them as they are."""


@dataclass(frozen=True)
class Member:
    """What the server knows about a client: how much data it has, never the data itself."""

    id: str
    domain: str
    duty: Duty
    samples: int

    @property
    def role(self) -> Role:
        """The role that its duty implies."""
        return self.duty.role
