"""SFAT's slack aggregation: AT users whose adversarial loss is small weigh more."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from fedrbn.federated.aggregation import Contribution, mean
from fedrbn.federated.spool import spooled
from fedrbn.types import Tensors


@dataclass(frozen=True)
class Slack:
    """SFAT (Zhu et al. 2023): the half of the AT users with the smaller adversarial loss weighs more.

    Their weights are multiplied by 1 + α, those of the other AT users by 1 − α; then the mean is as ever. ST users,
    whose losses do not compare, keep their weight, as does the middle one of an odd number of AT users. Which half a
    client is in is known only once all have reported: until then the uploads wait on disk, so memory stays two models.
    """

    alpha: float = 1 / 6

    def __post_init__(self) -> None:
        if not 0 <= self.alpha < 1:
            raise ValueError(f"got slack {self.alpha}; expected a number from 0 (the plain mean) to below 1.")

    def __call__(self, shared: Tensors, contributions: Iterable[Contribution]) -> Tensors:
        """See `Aggregate`."""
        with spooled(contributions) as spool:
            factors = self.factors([contribution.adversarial_loss for contribution in spool.waiting])
            everybody = spool.contributions(range(len(factors)))
            return mean(
                shared, (replace(one, weight=one.weight * by) for one, by in zip(everybody, factors, strict=True))
            )

    def factors(self, losses: Sequence[float | None]) -> list[float]:
        """What each client's weight is multiplied by; of equal losses the earlier client's counts as smaller."""
        found = [1.0] * len(losses)
        ranked = sorted((loss, i) for i, loss in enumerate(losses) if loss is not None)
        half = len(ranked) // 2
        for _, i in ranked[:half]:
            found[i] = 1 + self.alpha
        for _, i in ranked[len(ranked) - half :]:
            found[i] = 1 - self.alpha
        return found
