"""A linear layer with few rows that computes its products with oneDNN, in the order that is fastest.

With few rows, a product spends most of its time reading the weights. In float32, `nn.Linear` uses the BLAS library;
oneDNN, which computes the convolutions, is on some processors a quarter faster and accepts the same tensors without a
copy, transposed or not. In bfloat16, `nn.Linear` uses oneDNN, which reorders its second factor in every product;
W xᵀ, where that is the small x, has the same values as x Wᵀ and takes three quarters of the time.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

_ROWS = 256
"""Rows of a block, here a few megabytes."""


def with_onednn(layer: nn.Linear) -> OneDnnLinear:
    """The same layer, sharing the same parameters."""
    made = OneDnnLinear(layer.in_features, layer.out_features, bias=layer.bias is not None, device="meta")
    made.weight, made.bias = layer.weight, layer.bias
    return made.train(layer.training)


class OneDnnLinear(nn.Linear):
    """y = x Wᵀ + b with oneDNN in float32 and, in autocast, in its precision; otherwise as in `nn.Linear`."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        """The layer's output."""
        if not all(part.ndim == 2 and part.numel() and part.device.type == "cpu" for part in (input, self.weight)):
            return F.linear(input, self.weight, self.bias)
        if torch.is_autocast_enabled("cpu"):
            return self._in_autocast(input, torch.get_autocast_dtype("cpu"))
        if input.dtype == self.weight.dtype == torch.float32:
            return cast(Tensor, _Linear.apply(input, self.weight, self.bias))  # type: ignore[no-untyped-call]
        return F.linear(input, self.weight, self.bias)

    def _in_autocast(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            low = x.to(dtype), self.weight, None if self.bias is None else self.bias.to(dtype)
            return cast(Tensor, _LowLinear.apply(*low))  # type: ignore[no-untyped-call]


def available() -> bool:
    """Whether this build of PyTorch has oneDNN's products for float32."""
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")  # type: ignore[no-untyped-call]


class _Linear(torch.autograd.Function):
    """F.linear and its gradients g W, gᵀ x and Σ g."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _product(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        wanted = ctx.needs_input_grad
        return (
            _product(gradient, weight.t()) if wanted[0] else None,
            _product(gradient.t(), x.t()) if wanted[1] else None,
            gradient.sum(0) if wanted[2] else None,
        )


def _product(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Rows times the transposed weight, plus the bias; either may be a transposed view."""
    return cast(Tensor, torch.ops.mkldnn._linear_pointwise(rows, weight, bias, "none", [], ""))


class _LowLinear(torch.autograd.Function):
    """F.linear in the lower precision of x, computed as (W xᵀ + b)ᵀ; the weight and its gradient can have another."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        low = weight.to(x.dtype)
        ctx.save_for_backward(x, low)
        ctx.weight_dtype = weight.dtype
        turned = low @ x.t() if bias is None else torch.addmm(bias[:, None], low, x.t())
        return turned.t().contiguous()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        wanted = ctx.needs_input_grad
        return (
            gradient @ weight if wanted[0] else None,
            _converted_product(gradient.t(), x, ctx.weight_dtype) if wanted[1] else None,
            gradient.sum(0) if wanted[2] else None,
        )


def _converted_product(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    """(a @ b).to(dtype), in blocks of rows that are converted while they are in the processor's cache."""
    result = a.new_empty(len(a), b.shape[1], dtype=dtype)
    for part, rows in zip(torch.split(result, _ROWS), torch.split(a, _ROWS), strict=True):
        part.copy_(rows @ b)
    return result
