"""Limits on the influence of donors in Eq. 3, so that no single AT user determines the BN_a of its neighbours.

The softmax of Eq. 4 is sharp (T = 0.01): a donor that is slightly more similar than the others gets nearly all of the
weight, and the receiver predicts with whatever that donor sent as its BN_a. A `Guard` limits this in three ways, which
can be used separately. Without any of them, Eq. 3 is exactly the paper's.

    plausible   donors whose statistics are far from those of the others and from the receiver's BN_c are excluded
    cap         no donor has more weight than this; the excess is spread over the others by weight
    combine     the weighted median, or the weighted trimmed mean, of each statistic instead of the mean

The other two need a cap to be effective: a weighted median does not help against a donor with more than half of the
weight. With cap c, a median tolerates m malicious donors if m · c < ½.
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
"""The ε that batch norm adds to the variance: differences between variances below it have no effect."""


class Combine(Enum):
    """How the donors' values of one statistic are combined."""

    MEAN = "mean"
    MEDIAN = "median"
    TRIMMED = "trimmed"
    """The mean without a quarter of the weight at each end."""


@dataclass(frozen=True)
class Guard:
    """Limits on the influence of one donor; the default has none. See the module docstring."""

    cap: float | None = None
    """Largest α; with fewer than 1/cap donors, all have equal weight."""
    combine: Combine = Combine.MEAN
    plausible: float | None = None
    """Reject donors that are more than this many times as far from the centre as the median donor."""

    def __post_init__(self) -> None:
        if self.cap is not None and not 0 < self.cap <= 1:
            raise ConfigError(f"got method.donor_cap = {self.cap}; expected a share above 0, at most 1.")
        if self.plausible is not None and not self.plausible >= 1:
            raise ConfigError(
                f"got method.donor_range = {self.plausible}; expected at least 1, because the median donor is at 1."
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

        If no donor is plausible for a receiver, it uses the least unusual one.
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
        if self.plausible is not None:  # a rejected donor's weight is 0, but 0 · inf is NaN
            donated = donated.nan_to_num(0, 0, 0)
        if self.combine is Combine.MEAN:
            return alpha @ donated
        if self.combine is Combine.MEDIAN:
            return torch.stack([weighted_median(donated, row) for row in alpha])
        return torch.stack([share_trimmed_mean(donated, row, 0.25) for row in alpha])


def capped(alpha: Tensor, cap: float, allowed: Tensor | None = None) -> Tensor:
    """min(cap, s · α_j) with s such that rows sum to 1: the excess goes to the others in proportion to their weight.

    If a row has fewer than 1/cap allowed donors, they all have equal weight.
    """
    allowed = torch.ones_like(alpha, dtype=torch.bool) if allowed is None else allowed
    limit = torch.maximum(torch.full_like(alpha[:, :1], cap), 1 / allowed.sum(dim=1, keepdim=True))
    full = torch.zeros_like(allowed)
    for _ in range(alpha.shape[1]):  # each pass except the last brings at least one more donor to the cap
        rest = 1 - (full * limit).sum(dim=1, keepdim=True)
        open_ = allowed & ~full
        alpha = torch.where(full, limit, rest.clamp(min=0) * _normalised(alpha, open_))
        above = open_ & (alpha > limit * (1 + 1e-12))
        if not above.any():
            break
        full |= above
    return alpha


def _normalised(alpha: Tensor, among: Tensor) -> Tensor:
    """α among some donors only; rows sum to 1 (0 if there are none). If all their weights are 0, they are equal."""
    kept = torch.where(among, alpha, 0)
    kept = torch.where(kept.sum(dim=1, keepdim=True) > 0, kept, among.to(alpha.dtype))
    return kept / kept.sum(dim=1, keepdim=True).clamp(min=torch.finfo(alpha.dtype).tiny)


def deviation(
    personal: Mapping[str, Tensors], receiver: str, donors: Sequence[str], batch_norms: Sequence[BNNames]
) -> Tensor:
    """How unusual each donor's BN_a is for this receiver: its distance over the median voter's, in the worst layer.

    Voters are the donors and the receiver itself, with its BN_c. In each layer a voter's distance is the mean over
    channels of |μ − μ°| / σ° + |ln σ² − ln σ°²|, where ° is the voters' median in each channel: how far the voter would
    shift and scale the output of batch norm. A donor with a NaN or infinite value or a variance that is not positive
    has infinite distance. A single donor is not compared: of two voters, neither is the outlier.
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
