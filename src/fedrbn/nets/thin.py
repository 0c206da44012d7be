"""A convolution of the image itself, with a fast gradient at the pixels, which an attack needs at every step.

oneDNN computes a full block of 16 channels even if the image has 3. Two forms avoid that, each where it is the faster:

- in float32, a matrix product: every output pixel adds Wᵀ g to the patch it was computed from
- in lower precision, a convolution that computes 2 × 2 pixels at once: the 3 channels of 4 pixels are 12 channels
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

_THIN = 4
"""A convolution with at most this many input channels is taken to read the image itself."""
_SIDE = 2
"""The lower-precision gradient computes blocks of this many pixels squared."""


def is_thin(layer: nn.Conv2d) -> bool:
    """Whether the layer has few input channels, and a gradient that is computed here."""
    return (
        layer.in_channels <= _THIN
        and layer.groups == 1
        and layer.padding_mode == "zeros"
        and not isinstance(layer.padding, str)
    )


class ThinConv2d(nn.Conv2d):
    """A convolution with few input channels and a faster gradient at its input; in autocast it uses that precision."""

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:  # noqa: A002
        geometry = _Geometry(cast(Any, self.stride), cast(Any, self.padding), cast(Any, self.dilation))
        if not torch.is_autocast_enabled("cpu"):
            return cast(Tensor, _Convolve.apply(input, weight, bias, geometry))  # type: ignore[no-untyped-call]
        # Autocast itself would convert only in the forward pass.
        dtype = torch.get_autocast_dtype("cpu")
        low = (part if part is None else part.to(dtype) for part in (input, weight, bias))
        with torch.autocast("cpu", enabled=False):
            return cast(Tensor, _Convolve.apply(*low, geometry))  # type: ignore[no-untyped-call]


class _Geometry(NamedTuple):
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]


class _Convolve(torch.autograd.Function):
    """F.conv2d with a different gradient at x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, geometry: _Geometry) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.geometry = geometry
        return F.conv2d(x, weight, bias, *geometry)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        x, weight = ctx.saved_tensors
        at_weight = at_bias = None
        at_x = _at_pixels(gradient, x, weight, ctx.geometry) if ctx.needs_input_grad[0] else None
        if ctx.needs_input_grad[1] or ctx.needs_input_grad[2]:
            wanted = [False, ctx.needs_input_grad[1], ctx.needs_input_grad[2]]
            _, at_weight, at_bias = _gradients(gradient, x, weight, ctx.geometry, wanted)
        return at_x, at_weight, at_bias, None


def _gradients(
    gradient: Tensor, x: Tensor, weight: Tensor, geometry: _Geometry, wanted: list[bool]
) -> tuple[Tensor, Tensor, Tensor]:
    """PyTorch's gradients of F.conv2d at x, weight and bias, as far as wanted."""
    found = torch.ops.aten.convolution_backward(
        gradient, x, weight, [len(weight)] if wanted[2] else None, *geometry, False, [0, 0], 1, wanted
    )
    return cast(tuple[Tensor, Tensor, Tensor], found)


def _at_pixels(gradient: Tensor, x: Tensor, weight: Tensor, geometry: _Geometry) -> Tensor:
    """The gradient of F.conv2d at x."""
    if gradient.dtype.itemsize >= torch.float32.itemsize:
        filters = len(weight)
        patches = weight.reshape(filters, -1).t() @ gradient.reshape(len(gradient), filters, -1)
        return F.fold(patches, x.shape[2:], weight.shape[2:], geometry.dilation, geometry.padding, geometry.stride)
    if _divides_into_blocks(x, weight, geometry):
        return _by_blocks(gradient, weight, geometry.padding)
    return _gradients(gradient, x, weight, geometry, [True, False, False])[0]


def _divides_into_blocks(x: Tensor, weight: Tensor, geometry: _Geometry) -> bool:
    sizes = zip(x.shape[2:], weight.shape[2:], geometry.padding, strict=True)
    return geometry.stride == geometry.dilation == (1, 1) and all(
        side % _SIDE == 0 and kernel > pad for side, kernel, pad in sizes
    )


def _by_blocks(gradient: Tensor, weight: Tensor, padding: tuple[int, int]) -> Tensor:
    """The gradient at x of a convolution with stride 1, from one convolution with stride 2.

    A pixel's gradient is that of the output around it, convolved with the flipped kernel. All pixels of a block read
    the same window, which is one row and one column larger than the kernel; each has the kernel at its own place in it.
    """
    filters, channels, rows, columns = weight.shape
    kernels = weight.new_zeros(channels, _SIDE, _SIDE, filters, rows + _SIDE - 1, columns + _SIDE - 1)
    flipped = weight.flip(2, 3).transpose(0, 1)
    for i in range(_SIDE):
        for j in range(_SIDE):
            kernels[:, i, j, :, i : i + rows, j : j + columns] = flipped
    around = (rows - 1 - padding[0], columns - 1 - padding[1])
    return F.pixel_shuffle(F.conv2d(gradient, kernels.flatten(0, 2), None, _SIDE, around), _SIDE)
