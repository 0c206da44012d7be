"""The weighted mean of what clients share, accumulated as uploads arrive, and the server's momentum."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TypeAlias

from torch import Tensor

from fedrbn.types import Role, Tensors


@dataclass(frozen=True)
class Contribution:
    """One client's shared tensors (not necessarily all of them) and their weight in the mean."""

    client: str
    tensors: Tensors
    weight: float
    """The client's number of samples, up to the limit that the server accepts."""
    role: Role = Role.ST
    loss: float | None = None
    """The client's mean training loss, if known."""


Aggregate: TypeAlias = Callable[[Tensors, Iterable[Contribution]], Tensors]
"""(the shared weights of the last round, contributions) → the new shared weights."""


def mean(shared: Tensors, contributions: Iterable[Contribution]) -> Tensors:
    """Σ_k a_k θ_k / Σ_k a_k, name by name over the clients that sent that name; a name nobody sent keeps its value.

    Contributions are added one by one, so memory use is one model for any number of clients.
    """
    total: dict[str, float] = {}
    average: dict[str, Tensor] = {}
    for contribution in contributions:
        for name, tensor in contribution.tensors.items():
            total[name] = total.get(name, 0.0) + contribution.weight
            if name not in average:
                average[name] = tensor.clone()
            else:
                average[name].lerp_(tensor, contribution.weight / total[name])
    return {name: average.get(name, tensor) for name, tensor in shared.items()}


@dataclass(frozen=True)
class RoleMean:
    """The mean in which an AT user's upload counts `at_weight` times its number of samples."""

    at_weight: float

    def __call__(self, shared: Tensors, contributions: Iterable[Contribution]) -> Tensors:
        """See `Aggregate`."""
        return mean(shared, (self._weighed(contribution) for contribution in contributions))

    def _weighed(self, one: Contribution) -> Contribution:
        return replace(one, weight=one.weight * self.at_weight) if one.role is Role.AT else one


def carried(weights: Tensors, velocity: Tensors, beta: float) -> Tensors:
    """The server's momentum: θ + β v, where v is the change of θ in the previous round; without v, θ itself.

    For weights only, never for batch-norm statistics: a variance that overshoots can become negative.
    """
    return {
        name: theta.add(velocity[name], alpha=beta) if name in velocity else theta for name, theta in weights.items()
    }
