"""Weighted order statistics per column, used by the robust means of weights and of statistics."""

from __future__ import annotations

import torch
from torch import Tensor


def weighted_median(rows: Tensor, weights: Tensor) -> Tensor:
    """For each column the value below and above which no more than half of the weight lies.

    `rows` is clients × columns, `weights` one per client. If the weight splits into exact halves between two values,
    the result is their midpoint, as in the ordinary median of an even count.
    """
    values, share = _sorted(rows, weights)
    up_to = share.cumsum(0)
    half = share.sum(0) / 2
    slack = half * 1e-12  # sums of weights that are mathematically equal may differ in the last digits
    lower = (up_to >= half - slack).int().argmax(0)
    upper = (up_to > half + slack).int().argmax(0)
    return (values.gather(0, lower[None])[0] + values.gather(0, upper[None])[0]) / 2


def trimmed_mean(rows: Tensor, weights: Tensor, cut: int) -> Tensor:
    """For each column the weighted mean without its `cut` smallest and `cut` largest values."""
    values, share = _sorted(rows, weights)
    kept = slice(cut, len(rows) - cut)
    return (values[kept] * share[kept]).sum(0) / share[kept].sum(0)


def share_trimmed_mean(rows: Tensor, weights: Tensor, share: float) -> Tensor:
    """For each column the weighted mean without this share of the total weight at each end; `share` is below ½.

    A value at the cut counts with the part of its weight that is inside.
    """
    values, own = _sorted(rows, weights)
    whole = own.sum(0)
    up_to = own.cumsum(0)
    inside = up_to.clamp(max=(1 - share) * whole) - (up_to - own).clamp(min=share * whole)
    inside = inside.clamp(min=0)
    return (values * inside).sum(0) / inside.sum(0)


def _sorted(rows: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    values, order = rows.sort(dim=0, stable=True)
    return values, weights[:, None].expand_as(rows).gather(0, order)


def plain_median(rows: Tensor) -> Tensor:
    """For each column the ordinary median: the midpoint of the two central values if the count is even."""
    return weighted_median(rows, torch.ones(len(rows), dtype=rows.dtype))
