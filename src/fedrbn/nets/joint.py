"""Computes networks that share everything except batch norm in one pass: each row of a batch has its own network.

With frozen statistics batch norm is one affine map per channel,

    y = a x + c,   a = w / sqrt(σ² + ε₀),   c = b − μ a,

so one pass through the shared weights serves all owners, if each row uses the a, c of its owner.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from fedrbn.errors import NetworkError
from fedrbn.nets.dual_bn import DualBatchNorm, DualNet, NormaliseLayer
from fedrbn.types import Branch, Tensors

_Stacked: TypeAlias = Callable[[Tensor | None, float], Tensor]


class RowNorms:
    """The frozen batch norm of several owners, both branches of each.

    An owner is given by its own tensors, with their names in `nets.state.tensors(net)`; all other tensors are those of
    the network.
    """

    def __init__(self, net: DualNet, owners: Sequence[Tensors]) -> None:
        names = {id(tensor): name for name, tensor in (*net.named_parameters(), *net.named_buffers())}

        def stacked(tensor: Tensor | None, otherwise: float) -> Tensor:
            """One row for each owner, in double precision."""
            if tensor is None:
                return torch.tensor([[otherwise]], dtype=torch.float64)
            own = tensor.detach()
            return torch.stack([owner.get(names[id(tensor)], own) for owner in owners]).double()

        self._maps = {
            layer: _interleaved([_affine_map(layer, branch, stacked) for branch in Branch])
            for layer in net.modules()
            if isinstance(layer, DualBatchNorm)
        }

    def __call__(self, rows: Tensor) -> NormaliseLayer:
        """Batch norm for a batch; `rows` has `place(owner, branch)` for each row."""

        def normalise(layer: DualBatchNorm, x: Tensor) -> Tensor:
            layer.clean._check_input_dim(x)  # type: ignore[no-untyped-call]
            repeat, rest = divmod(len(x), max(1, len(rows)))
            if rest:
                raise NetworkError(
                    f"got {len(x)} rows at a batch-norm layer of a joint pass; expected a multiple of the {len(rows)} "
                    "inputs. This network mixes samples before the layer: call it for each owner instead."
                )
            own = rows.repeat_interleave(repeat) if repeat > 1 else rows  # patches of an image are adjacent
            scale, shift = (part[own].view(len(x), -1, *[1] * (x.ndim - 2)) for part in self._maps[layer])
            return torch.addcmul(shift, x, scale)

        return normalise


def place(owner: int, branch: Branch) -> int:
    """The index of an owner's branch among all owners and branches."""
    return owner * len(Branch) + list(Branch).index(branch)


def separable(net: DualNet, images: Tensor) -> bool:
    """Whether a row's logits depend only on that row and its owner's batch norm, so that rows can share a pass.

    Tested on images: rows of two owners in one pass are compared with each row alone and with the network itself.
    Networks that mix samples or draw random numbers are not separable.
    """
    state = torch.get_rng_state()
    other = {
        name: 1.5 * tensor + 0.1
        for name, tensor in net.named_buffers()
        if tensor.is_floating_point() and any(tensor is own for own in _statistics(net))
    }
    rows = torch.tensor([place(0, Branch.CLEAN), place(1, Branch.NOISED), place(1, Branch.CLEAN)])
    try:
        norms, x = RowNorms(net, [{}, other]), images[torch.arange(len(rows)) % len(images)]
        with torch.no_grad():
            joint = net.through(x, norms(rows))
            alone = torch.cat([net.through(x[i : i + 1], norms(rows[i : i + 1])) for i in range(len(rows))])
            itself = net.logits(Branch.CLEAN)(x[:1])
    except Exception:  # a user's network may not support this batch
        return False
    near = 1e-4 * max(1.0, alone.abs().max().item())
    same = joint.shape == alone.shape and bool(((joint - alone).abs() <= near).all())
    return same and bool(((itself - alone[:1]).abs() <= near).all()) and torch.equal(torch.get_rng_state(), state)


def _statistics(net: DualNet) -> list[Tensor]:
    norms = [layer for layer in net.modules() if isinstance(layer, _BatchNorm)]
    return [part for layer in norms for part in (layer.running_mean, layer.running_var) if part is not None]


def _affine_map(layer: DualBatchNorm, branch: Branch, stacked: _Stacked) -> tuple[Tensor, Tensor]:
    """(a, c) of each owner on one branch."""
    norm, affine = layer.branch(branch), layer.affine(branch)
    scale = stacked(affine.weight, 1.0) / (stacked(norm.running_var, 1.0) + norm.eps).sqrt()
    return scale, stacked(affine.bias, 0.0) - stacked(norm.running_mean, 0.0) * scale


def _interleaved(branches: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """The maps of all branches as two tensors [owners × branches, channels] in the order of `place`."""
    scale, shift = (torch.stack(parts, 1).flatten(0, 1).float() for parts in zip(*branches, strict=True))
    return scale, shift
