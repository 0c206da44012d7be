"""The state of a network as tensors by name: all of them, and those of its batch norm."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedrbn.errors import NetworkError
from fedrbn.nets.dual_bn import DualBatchNorm, DualNet
from fedrbn.types import Branch, Tensors


@dataclass(frozen=True)
class BNNames:
    """The names, in `tensors(net)`, of one batch-norm layer's tensors on one branch; without w, b if it has none."""

    layer: str
    branch: Branch
    mean: str
    variance: str
    count: str
    affine: tuple[str, ...]

    @property
    def statistics(self) -> tuple[str, str]:
        """The names of (μ, σ²)."""
        return self.mean, self.variance


def batch_norms(net: DualNet) -> tuple[BNNames, ...]:
    """Every batch-norm layer and branch of the network, in the order of its layers, found by type."""
    return tuple(
        BNNames(
            layer=name,
            branch=branch,
            mean=f"{name}.{branch.value}.running_mean",
            variance=f"{name}.{branch.value}.running_var",
            count=f"{name}.{branch.value}.num_batches_tracked",
            affine=tuple(f"{name}.{branch.value}.{key}" for key, _ in layer.branch(branch).named_parameters()),
        )
        for name, layer in net.named_modules()
        if isinstance(layer, DualBatchNorm)
        for branch in Branch
        if branch is Branch.CLEAN or layer.noised is not None
    )


def tensors(net: nn.Module) -> Tensors:
    """Every parameter and persistent buffer once, by name (a module used in two places counts once); not copied."""
    transient = {
        f"{prefix}.{key}".lstrip(".")
        for prefix, module in net.named_modules()
        for key in module._non_persistent_buffers_set
    }
    named = dict(net.named_parameters()) | {k: v for k, v in net.named_buffers() if k not in transient}
    return {name: tensor.detach() for name, tensor in named.items()}


def load(net: nn.Module, values: Tensors) -> None:
    """Copy `values` into the network's tensors of the same names; names not given keep their value."""
    own = tensors(net)
    for name, value in values.items():  # check all before copying any
        if name not in own or own[name].shape != value.shape:
            expected = f"shape {tuple(own[name].shape)}" if name in own else f"one of {len(own)} names of the network"
            raise NetworkError(
                f"got tensor {name!r} of shape {tuple(value.shape)}; expected {expected}. "
                "These weights belong to a different network: check model.name, model.width and method.affine."
            )
    for name, value in values.items():
        own[name].copy_(value)


def digest(tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> str:
    """Sixty-four hex digits that identify these tensors, with their names and types, and these facts."""
    hasher = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        hasher.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        hasher.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return hasher.hexdigest()
