"""Bounded influence of donors in Eq. 3, so that no single AT user owns the BN_a of its neighbours.

The softmax of Eq. 4 is sharp (T = 0.01): a donor that is a little more similar than the others has nearly all of the
weight, and whatever it calls its BN_a is what the receiver predicts with. A `Guard` limits that in three ways, each of
which can be used alone; without any, Eq. 3 is as the paper has it, number for number.

    plausible   donors whose statistics lie far outside the others' and the receiver's own BN_c do not count at all
    cap         no donor weighs more than this; what it loses goes to the next similar ones
    combine     the weighted median, or the weighted trimmed mean, of each statistic instead of the mean

A cap is what makes the other two bite: a weighted median is no defence against a donor that has more than half of the
weight. With cap c, a median withstands m malicious donors if m · c < ½.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor

from fedrbn.errors import ConfigError
from fedrbn.federated.aggregation.order_statistics import plain_median, share_trimmed_mean, weighted_median
from fedrbn.nets.state import BNNames
from fedrbn.types import Branch, Tensors

BN_EPSILON = 1e-5
"""What batch norm adds to the variance: below it, a variance makes no difference."""


class Combine(Enum):
    """How the donors' values of one statistic become one."""

    MEAN = "mean"
    MEDIAN = "median"
    TRIMMED = "trimmed"
    """Without a quarter of the weight at either end."""


@dataclass(frozen=True)
class Guard:
    """Limits on what one donor can do; the default has none. See the module's text."""

    cap: float | None = None
    """Largest α; with fewer than 1/cap donors all weigh the same."""
    combine: Combine = Combine.MEAN
    plausible: float | None = None
    """Reject donors that are more than this many times as far from the centre as the middle one."""

    def __post_init__(self) -> None:
        if self.cap is not None and not 0 < self.cap <= 1:
            raise ConfigError(f"got method.donor_cap = {self.cap}; expected a share above 0, at most 1.")
        if self.plausible is not None and not self.plausible >= 1:
            raise ConfigError(
                f"got method.donor_range = {self.plausible}; expected at least 1, because the middle donor is at 1."
            )

    def weights(
        self,
        alpha: Tensor,
        personal: Mapping[str, Tensors],
        receivers: Sequence[str],
        donors: Sequence[str],
        batch_norms: Sequence[BNNames],
    ) -> Tensor:
        """α of Eq. 4 (receivers × donors) within the limits; rows still sum to 1.

        A receiver for whom nobody is plausible believes the least odd donor.
        """
        if self.plausible is None:
            return alpha if self.cap is None else capped(alpha, self.cap)
        odd = torch.stack([deviation(personal, receiver, donors, batch_norms) for receiver in receivers])
        allowed = odd <= odd.amin(dim=1, keepdim=True).clamp(min=self.plausible)
        alpha = _normalised(alpha, allowed)
        return alpha if self.cap is None else capped(alpha, self.cap, allowed)

    def combined(self, alpha: Tensor, donated: Tensor) -> Tensor:
        """Eq. 3 for one statistic: α (receivers × donors) and donated (donors × channels) → receivers × channels.

        Memory is donors × channels beyond the result.
        """
        if self.plausible is not None:  # a refused donor's weight is 0, but 0 · inf would still be no number
            donated = donated.nan_to_num(0, 0, 0)
        if self.combine is Combine.MEAN:
            return alpha @ donated
        if self.combine is Combine.MEDIAN:
            return torch.stack([weighted_median(donated, row) for row in alpha])
        return torch.stack([share_trimmed_mean(donated, row, 0.25) for row in alpha])


def capped(alpha: Tensor, cap: float, allowed: Tensor | None = None) -> Tensor:
    """min(cap, s · α_j) with the s for which rows sum to 1: excess goes to the others in proportion to their weight.

    Where a row has fewer than 1/cap allowed donors, they all weigh the same.
    """
    allowed = torch.ones_like(alpha, dtype=torch.bool) if allowed is None else allowed
    limit = torch.maximum(torch.full_like(alpha[:, :1], cap), 1 / allowed.sum(dim=1, keepdim=True))
    full = torch.zeros_like(allowed)
    for _ in range(alpha.shape[1]):  # each pass but the last fills at least one more donor
        rest = 1 - (full * limit).sum(dim=1, keepdim=True)
        open_ = allowed & ~full
        alpha = torch.where(full, limit, rest.clamp(min=0) * _normalised(alpha, open_))
        above = open_ & (alpha > limit * (1 + 1e-12))
        if not above.any():
            break
        full |= above
    return alpha


def _normalised(alpha: Tensor, among: Tensor) -> Tensor:
    """α among some donors only, rows summing to 1 (0 if there are none); equal weights where all of theirs are 0."""
    kept = torch.where(among, alpha, 0)
    kept = torch.where(kept.sum(dim=1, keepdim=True) > 0, kept, among.to(alpha.dtype))
    return kept / kept.sum(dim=1, keepdim=True).clamp(min=torch.finfo(alpha.dtype).tiny)


def deviation(
    personal: Mapping[str, Tensors], receiver: str, donors: Sequence[str], batch_norms: Sequence[BNNames]
) -> Tensor:
    """How far off each donor's BN_a is for this receiver: so many times as far as the middle voter, in the worst layer.

    Voters are the donors and the receiver itself, with its BN_c. In each layer a voter's distance is the mean over
    channels of |μ − μ°| / σ° + |ln σ² − ln σ°²|, where ° is the voters' median, channel by channel: how far it would
    shift and stretch what batch norm hands on. A donor with a value that is not finite or a variance that is not
    positive is infinitely odd. A single donor is not compared: two voters have no middle.
    """
    noised = {names.layer: names for names in batch_norms if names.branch is Branch.NOISED}
    worst = torch.zeros(len(donors), dtype=torch.float64)
    for clean in batch_norms:
        if clean.branch is not Branch.CLEAN or clean.layer not in noised:
            continue
        given = noised[clean.layer]
        mean = torch.stack([personal[donor][given.mean] for donor in donors]).double()
        variance = torch.stack([personal[donor][given.variance] for donor in donors]).double()
        fit = (mean.isfinite() & variance.isfinite() & (variance > 0)).all(dim=1)
        worst[~fit] = math.inf
        if int(fit.sum()) < 2:
            continue
        own = personal[receiver]
        voters = _Voters(
            torch.cat([mean[fit], own[clean.mean].double()[None]]),
            torch.cat([variance[fit], own[clean.variance].double()[None]]),
        )
        distance = voters.distances()
        middle = plain_median(distance[:, None])[0].clamp(min=torch.finfo(torch.float64).tiny)
        worst[fit] = torch.maximum(worst[fit], distance[:-1] / middle)
    return worst


@dataclass(frozen=True)
class _Voters:
    """Means and variances of one layer, voters × channels."""

    mean: Tensor
    variance: Tensor

    def distances(self) -> Tensor:
        logs = (self.variance + BN_EPSILON).log()
        centre, middle_log = plain_median(self.mean), plain_median(logs)
        shift = (self.mean - centre).abs() / (middle_log / 2).exp()
        return (shift + (logs - middle_log).abs()).mean(dim=1)
