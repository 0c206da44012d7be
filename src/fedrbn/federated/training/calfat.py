"""CalFAT (Chen et al. 2022): the log of the client's class prior added to the logits, in training only.

A client with few classes would otherwise learn to predict them always. The loss (and the training attack on it) sees
f(x) + log π, so the network itself need not hold the prior; it is evaluated and deployed without. With n_c of the n
training images in class c and C classes,

    π_c = (n_c + 1) / (n + C):

one imagined image for each class, so that a class which the client lacks has a small prior instead of log 0. (The
release counts one image for a lacking class only.)

The release attacks the calibrated logits as well, but their KL divergence from those of the clean image, whatever the
label; here the attack climbs the loss of `method.at_loss`, which is that divergence for TRADES only.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedrbn.nets.dual_bn import DualNet


def with_prior(net: DualNet, labels: Tensor) -> DualNet:
    """The same network (not a copy: training one trains the other) whose logits have the prior of `labels` added."""
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
