"""CalFAT (Chen et al. 2022): the log of the client's class prior added to the logits, in training only.

A client with few classes would otherwise learn to always predict them. The loss (and the training attack on it) sees
f(x) + log π, so the network itself does not contain the prior; it is evaluated and deployed without it. With n_c of the
n training images in class c and C classes,

    π_c = (n_c + 1) / (n + C):

one extra image per class, so that a class that the client lacks has a small prior instead of log 0. (The release adds
one image only for missing classes.)

The release also attacks the calibrated logits, but it maximises their KL divergence from those of the clean image
without the label. Here the attack maximises the loss of `method.at_loss`, which is that divergence only for TRADES.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedrbn.nets.dual_bn import DualNet


def with_prior(net: DualNet, labels: Tensor) -> DualNet:
    """The same network (not a copy: training one trains the other) with the prior of `labels` added to its logits."""
    return DualNet(_Shifted(net.network, torch.bincount(labels)), net.precision)


class _Shifted(nn.Module):
    def __init__(self, network: nn.Module, counts: Tensor) -> None:
        super().__init__()
        self.network = network
        self.counts = counts

    def forward(self, x: Tensor) -> Tensor:
        logits = cast(Tensor, self.network(x))
        smoothed = F.pad(self.counts, (0, logits.shape[1] - len(self.counts))).to(logits) + 1
        return logits + (smoothed / smoothed.sum()).log()
