"""Faster CPU kernels for the same network; logits and gradients differ only by float rounding.

Channels-last weights make PyTorch keep activations channels-last, where max pooling and batch norm are vectorised.
Convolutions of the image have a faster gradient at the pixels (`nets.thin`), large linear layers use oneDNN
(`nets.linear`), pooling runs before the ReLU that it commutes with, and the gradient of a flattened tensor keeps the
memory layout of the original. A 1 × 1 convolution with a stride drops the pixels it skips first: in this layout, oneDNN
crashes or computes a wrong weight gradient if it has few input channels (oneDNN issue 6035).
"""

from __future__ import annotations

import copy
from itertools import pairwise
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedrbn.nets import linear
from fedrbn.nets.dual_bn import DualNet
from fedrbn.nets.thin import ThinConv2d, is_thin

_LARGE = 1 << 22
"""A linear layer with this many weights does not fit into a core's cache; smaller ones are faster unchanged."""


def fast(net: DualNet) -> DualNet:
    """A copy of a network on the CPU with faster kernels; its tensors keep their names, shapes and values."""
    net = copy.deepcopy(net)
    replaced = {layer: _quicker(layer) for layer in net.modules()}
    layout = torch.contiguous_format if any(map(_is_unsafe, replaced.values())) else torch.channels_last
    for parent in list(net.modules()):
        for name, child in parent._modules.items():  # a layer that is used in two places is visited twice
            if child is not None:
                parent._modules[name] = replaced[child]
        if type(parent) is nn.Sequential:
            _pool_first(parent)
    return net.to(memory_format=layout)  # type: ignore[call-overload, no-any-return]


def _quicker(layer: nn.Module) -> nn.Module:
    """The layer's faster form, or the layer itself if it has none."""
    if type(layer) is nn.Conv2d and _is_unsafe(layer):
        return _with_parameters_of(layer, SkippingConv2d)
    if type(layer) is nn.Conv2d and is_thin(layer):
        return _with_parameters_of(layer, ThinConv2d)
    if type(layer) is nn.Linear and layer.weight.numel() >= _LARGE and linear.available():
        return linear.with_onednn(layer)
    if type(layer) is nn.Flatten and (layer.start_dim, layer.end_dim) == (1, -1):
        return LayoutFlatten()
    return layer


def _pool_first(layers: nn.Sequential) -> None:
    """Run each max pooling before the preceding ReLU: same values and gradients, but ReLU has fewer values to process.

    The maximum of max(x, 0) is max(max x, 0), from the same pixel; where that is 0, the gradient of ReLU is also 0.
    """
    for one, two in pairwise(list(layers._modules)):
        relu, pool = layers._modules[one], layers._modules[two]
        if type(relu) is nn.ReLU and type(pool) is nn.MaxPool2d and not pool.return_indices:
            layers._modules[one], layers._modules[two] = pool, relu


def _is_unsafe(layer: nn.Module) -> bool:
    """Whether oneDNN may get the weight gradient of this layer wrong in the channels-last layout."""
    return (
        isinstance(layer, nn.Conv2d)
        and not isinstance(layer, SkippingConv2d)
        and max(layer.kernel_size) == 1
        and max(layer.stride) > 1
    )


def _with_parameters_of(layer: nn.Conv2d, kind: type[nn.Conv2d]) -> nn.Conv2d:
    """The same layer as a `kind`, sharing the same parameters."""
    made = kind(
        layer.in_channels,
        layer.out_channels,
        cast(Any, layer.kernel_size),
        cast(Any, layer.stride),
        cast(Any, layer.padding),
        cast(Any, layer.dilation),
        layer.groups,
        bias=layer.bias is not None,
        padding_mode=layer.padding_mode,
        device="meta",  # nothing to allocate or initialise: the parameters are replaced
    )
    made.weight, made.bias = layer.weight, layer.bias
    return made.train(layer.training)


class SkippingConv2d(nn.Conv2d):
    """A 1 × 1 convolution with a stride: first drops the pixels that the stride skips, then convolves with stride 1."""

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:  # noqa: A002
        if any(self._reversed_padding_repeated_twice):
            mode = "constant" if self.padding_mode == "zeros" else self.padding_mode
            input = F.pad(input, self._reversed_padding_repeated_twice, mode=mode)  # noqa: A001
        rows, columns = self.stride
        return F.conv2d(input[..., ::rows, ::columns], weight, bias, groups=self.groups)


class LayoutFlatten(nn.Flatten):
    """Flatten whose gradient has the memory layout of its input: mixed layouts make the ReLU before it slow."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        """[n, …] as [n, features]."""
        if input.ndim == 4 and input.is_contiguous(memory_format=torch.channels_last) and not input.is_contiguous():
            return cast(Tensor, _FlattenLast.apply(input))  # type: ignore[no-untyped-call]
        return input.flatten(1)


class _FlattenLast(torch.autograd.Function):
    """Flattens a channels-last tensor, which copies it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.shape = x.shape
        return x.flatten(1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.reshape(ctx.shape).contiguous(memory_format=torch.channels_last)
