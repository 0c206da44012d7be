"""SFAT's slack aggregation: AT users with a small adversarial loss get more weight."""

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
    """SFAT (Zhu et al. 2023): a share of the AT users, those with the smallest adversarial loss, gets more weight.

    Their weights are multiplied by 1 + α, those of the other AT users by 1 − α; then the usual mean is taken. The
    defaults are those of the authors' release: 1 client of 5, with (1 + α)/(1 − α) = 1.4. Of several AT users at least
    one is in the share. A single AT user keeps its weight. ST users do too: their losses are not comparable.

    The release differs in two points: it starts in the second round, and all clients have equal weight for
    parameters with "bn" in their name. This implementation reweights everything that is shared, in every round.

    The share is known only after all clients have reported. Until then the uploads are kept on disk, so memory stays at
    two models.
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
        """The factor for each client's weight; if losses are equal, the earlier client's counts as smaller."""
        found = [1.0] * len(losses)
        ranked = sorted((loss, i) for i, loss in enumerate(losses) if loss is not None)
        if len(ranked) < 2:
            return found  # a single AT user has nobody to compare with
        best = max(1, math.floor(self.share * len(ranked) + 1e-9))  # 0.2 is not exact in floating point
        for rank, (_, i) in enumerate(ranked):
            found[i] = 1 + self.alpha if rank < best else 1 - self.alpha
        return found
