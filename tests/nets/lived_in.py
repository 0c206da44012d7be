"""Networks as they are after training: every batch-norm layer with statistics and weights of its own."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


def lived_in(net: nn.Module, seed: int = 1) -> nn.Module:
    """The network in eval mode with random, plausible batch norm in place of the initial zeros and ones."""
    random = torch.Generator().manual_seed(seed)
    for layer in net.modules():
        if isinstance(layer, _BatchNorm) and layer.running_mean is not None and layer.running_var is not None:
            layer.running_mean.normal_(std=0.2, generator=random)
            layer.running_var.uniform_(0.5, 2.0, generator=random)
            if layer.affine:
                with torch.no_grad():
                    layer.weight.uniform_(0.5, 1.5, generator=random)
                    layer.bias.normal_(std=0.1, generator=random)
    return net.eval()
