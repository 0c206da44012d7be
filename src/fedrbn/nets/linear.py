"""A linear layer that computes its three matrix products with oneDNN, on some processors a quarter faster than MKL.

With few rows, a product spends most of its time reading the weights. `nn.Linear` uses the BLAS library. oneDNN, which
computes the convolutions, accepts the same tensors without a copy, transposed or not.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F


def with_onednn(layer: nn.Linear) -> OneDnnLinear:
    """The same layer, sharing the same parameters."""
    made = OneDnnLinear(layer.in_features, layer.out_features, bias=layer.bias is not None, device="meta")
    made.weight, made.bias = layer.weight, layer.bias
    return made.train(layer.training)


class OneDnnLinear(nn.Linear):
    """y = x Wᵀ + b with oneDNN where supported (float32, not in autocast), otherwise as in `nn.Linear`."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        """The layer's output."""
        if not (_supported(input) and _supported(self.weight)):
            return F.linear(input, self.weight, self.bias)
        return cast(Tensor, _Linear.apply(input, self.weight, self.bias))  # type: ignore[no-untyped-call]


def available() -> bool:
    """Whether this build of PyTorch has oneDNN's products for float32."""
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")  # type: ignore[no-untyped-call]


def _supported(tensor: Tensor) -> bool:
    return (
        tensor.dtype == torch.float32
        and tensor.ndim == 2
        and tensor.numel() > 0
        and tensor.device.type == "cpu"
        and not torch.is_autocast_enabled("cpu")
    )


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
