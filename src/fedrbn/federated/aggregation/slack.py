"""SFAT's slack aggregation: AT users whose adversarial loss is small weigh more."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from fedrbn.errors import ConfigError
from fedrbn.federated.aggregation.mean import Contribution, mean
from fedrbn.federated.aggregation.spool import spooled
from fedrbn.types import Role, Tensors


@dataclass(frozen=True)
class Slack:
    """SFAT (Zhu et al. 2023): a share of the AT users, those with the smallest adversarial loss, weighs more.

    Their weights are multiplied by 1 + α, those of the other AT users by 1 − α; then the mean is as ever. By default as
    in the authors' release: 1 client of 5, with (1 + α)/(1 − α) = 1.4. At least one AT user of several is in the share.
    ST users, whose losses do not compare, keep their weight, as does an AT user that is alone.

    The release differs in two things: it starts with the second round, and weighs parameters alike whose name has "bn".
    Ours weighs every round and all that is shared.

    Who is in the share is known only once all have reported: until then the uploads wait on disk, so memory stays two
    models.
    """

    alpha: float = 1 / 6
    share: float = 0.2

    def __post_init__(self) -> None:
        if not 0 <= self.alpha < 1:
            raise ConfigError(f"got slack {self.alpha}; expected a number from 0 (the plain mean) to below 1.")
        if not 0 < self.share < 1:
            raise ConfigError(f"got slack share {self.share}; expected a part of the AT users, above 0 and below 1.")

    def __call__(self, shared: Tensors, contributions: Iterable[Contribution]) -> Tensors:
        """See `Aggregate`."""
        with spooled(contributions) as spool:
            factors = self.factors([one.loss if one.role is Role.AT else None for one in spool.waiting])
            everybody = spool.contributions(range(len(factors)))
            return mean(
                shared, (replace(one, weight=one.weight * by) for one, by in zip(everybody, factors, strict=True))
            )

    def factors(self, losses: Sequence[float | None]) -> list[float]:
        """What each client's weight is multiplied by; of equal losses the earlier client's counts as smaller."""
        found = [1.0] * len(losses)
        ranked = sorted((loss, i) for i, loss in enumerate(losses) if loss is not None)
        if len(ranked) < 2:
            return found  # there is nobody to be better than
        best = max(1, math.floor(self.share * len(ranked) + 1e-9))  # 0.2 has no exact float
        for rank, (_, i) in enumerate(ranked):
            found[i] = 1 + self.alpha if rank < best else 1 - self.alpha
        return found
