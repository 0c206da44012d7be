"""Training in lower precision: convolutions and matrix products use it; weights, logits and losses stay float32."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights

from fedrbn.nets.dual_bn import DualBatchNorm, DualNet
from fedrbn.nets.fast import SkippingConv2d
from fedrbn.nets.linear import OneDnnLinear
from fedrbn.nets.thin import ThinConv2d
from fedrbn.types import Branch, Stats

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, ThinConv2d, SkippingConv2d)
_PRODUCTS = (nn.Linear, OneDnnLinear, *_CONVOLUTIONS)
"""Layers whose weights are read only by a product. A subclass may use them in other ways, so it does not count."""


def in_precision(net: DualNet, precision: torch.dtype | None) -> DualNet:
    """A copy of a network whose convolutions and matrix products use this precision; None changes nothing."""
    net = copy.deepcopy(net)
    net.precision = precision
    return net


def as_now(net: DualNet, branch: Branch) -> Callable[[Tensor], Tensor]:
    """f(·; BN_branch) with frozen statistics, for many calls between which the network does not change.

    In lower precision, weights are converted once instead of in every product, and batch norm is folded into the
    convolution before it. The weights then take no gradient. In float32 neither is faster: the function is `net`'s.
    """
    precision = net.precision
    if precision is None:
        return lambda x: net(x, branch, Stats.FROZEN)
    pairs = _foldable(net.network)
    tensors = _converted(net.network)
    for name, layer in net.network.named_modules():
        if layer in pairs:
            tensors |= _folded(name, layer, pairs[layer], branch)
    tensors = {name: tensor.to(precision) for name, tensor in tensors.items()}
    folded = set(pairs.values())

    def normalise(layer: DualBatchNorm, x: Tensor) -> Tensor:
        return x if layer in folded else layer.normalise(x, branch, Stats.FROZEN)

    return lambda x: net.through(x, normalise, precision, tensors)


def _converted(network: nn.Module) -> dict[str, Tensor]:
    """The weights and biases that autocast would convert: those that no other kind of layer uses too."""
    others = {
        id(parameter)
        for layer in network.modules()
        if type(layer) not in _PRODUCTS or layer._forward_pre_hooks
        for parameter in layer.parameters(recurse=False)
    }
    return {name: p.detach() for name, p in network.named_parameters() if id(p) not in others}


def _foldable(network: nn.Module) -> dict[nn.Module, DualBatchNorm]:
    """Each convolution with the batch norm that alone reads its output.

    Only where the order of layers proves it: in `nn.Sequential` containers, at any depth of nesting. So it takes no
    time, unlike `nets.fold`, which traces the network.
    """
    uses = Counter(layer for _, layer in network.named_modules(remove_duplicate=False))
    owners = Counter(p for layer in network.modules() for p in layer.parameters(recurse=False))
    return {
        one: two
        for one, two in pairwise(_in_order(network))
        if type(one) in _CONVOLUTIONS
        and one.bias is not None
        and isinstance(two, DualBatchNorm)
        and uses[one] == uses[two] == 1
        and all(owners[parameter] == 1 for parameter in one.parameters())
        and not _hooked(one)
        and not _hooked(two)
    }


def _in_order(network: nn.Module) -> Iterator[nn.Module]:
    if type(network) is nn.Sequential and not _hooked(network):
        for layer in network:
            yield from _in_order(layer)
    else:
        yield network


def _hooked(layer: nn.Module) -> bool:
    return bool(layer._forward_hooks or layer._forward_pre_hooks)


def _folded(name: str, layer: nn.Module, norm: DualBatchNorm, branch: Branch) -> dict[str, Tensor]:
    """Weight and bias of a convolution that also does what this branch of the batch norm after it does."""
    convolution, own, affine = cast(nn.Conv2d, layer), norm.branch(branch), norm.affine(branch)
    mean, variance = cast(Tensor, own.running_mean), cast(Tensor, own.running_var)
    both = fuse_conv_bn_weights(
        convolution.weight, convolution.bias, mean, variance, own.eps, affine.weight, affine.bias
    )
    return {f"{name}.{part}": tensor.detach() for part, tensor in zip(("weight", "bias"), both, strict=True)}
