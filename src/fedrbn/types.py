"""The nouns that every part of the system shares: roles, branches of batch norm, and members of a federation."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from torch import Tensor


Tensors: TypeAlias = "dict[str, Tensor]"
"""Named tensors: a part of a network's state."""


class Role(Enum):
    """What a client can afford: adversarial training (S in the paper) or standard training only (T)."""

    AT = "AT"
    ST = "ST"


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
    """What the server knows of a client: never its data, only how much of it there is."""

    id: str
    domain: str
    role: Role
    samples: int
