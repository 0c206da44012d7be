"""Fold batch norm into the layer before it: in inference w (Ax + c − μ) / sqrt(σ² + ε₀) + b is one affine map of x.

A pair is folded only if that is provably correct: the network can be traced, the batch norm reads the output of a
convolution or linear layer that nothing else reads, both run exactly once, and both use the same axis for channels.
Everything else (pre-activation networks, shared layers, data-dependent code) is unchanged, and the reason is recorded.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, fx, nn
from torch.fx.passes.shape_prop import ShapeProp
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval

_DIMENSIONS = {nn.Linear: 2, nn.Conv1d: 3, nn.Conv2d: 4, nn.Conv3d: 5}
"""Layers that can absorb a batch norm, and the number of axes for which their channels are axis 1."""
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


@dataclass(frozen=True)
class Folded:
    """A network in eval mode with batch norm folded where provably correct; its results are the same up to rounding."""

    net: nn.Module
    folded: tuple[tuple[str, str], ...]
    """(layer, batch norm) pairs that became one layer, by their names in the network."""
    kept: dict[str, str]
    """Batch-norm layers that remain, and why."""


def fold(net: nn.Module, example: Tensor) -> Folded:
    """A copy of an ordinary network, in eval mode, with batch norm folded; `example` is a batch it can be called with.

    Which layers are folded depends on the network's structure only, not on its weights.
    """
    net = copy.deepcopy(net).eval()
    norms = [name for name, module in net.named_modules() if isinstance(module, _BatchNorm)]
    try:
        # A copy, because a network that writes to itself keeps the proxies of tracing.
        graph = _traced(copy.deepcopy(net), example)
    except Exception as error:  # tracing runs user code on proxy tensors: any error is possible
        reason = f"the network cannot be traced ({type(error).__name__}: {str(error).splitlines()[0][:80]})"
        return Folded(net, (), dict.fromkeys(norms, reason))
    pairs: list[tuple[str, str]] = []
    kept: dict[str, str] = {}
    for name in norms:
        layer = _layer_before(net, graph, name)
        if isinstance(layer, _Kept):
            kept[name] = layer.reason
        else:
            pairs.append((layer, name))
    for layer, name in pairs:
        net.set_submodule(layer, _merged(net.get_submodule(layer), net.get_submodule(name)))
        net.set_submodule(name, nn.Identity())
    return Folded(net, tuple(pairs), kept)


@dataclass(frozen=True)
class _Kept:
    reason: str


def _traced(net: nn.Module, example: Tensor) -> fx.Graph:
    """The network's graph, with the shape of each node's result."""
    traced = fx.symbolic_trace(net)
    with torch.no_grad():
        ShapeProp(traced).propagate(example)
    return traced.graph


def _layer_before(net: nn.Module, graph: fx.Graph, norm: str) -> str | _Kept:
    """The name of the layer that this batch norm can be folded into, or why there is none."""
    calls = Counter(str(node.target) for node in graph.nodes if node.op == "call_module")
    read = [str(node.target) for node in graph.nodes if node.op == "get_attr"]
    node = next((n for n in graph.nodes if n.op == "call_module" and n.target == norm), None)
    if node is None or calls[norm] != 1:
        return _Kept(f"it runs {calls[norm]} times")
    before = node.args[0] if node.args else None
    if not isinstance(before, fx.Node) or before.op != "call_module":
        return _Kept("its input is not the output of a layer")
    layer = str(before.target)
    module, batch_norm = net.get_submodule(layer), net.get_submodule(norm)
    dimensions = _DIMENSIONS.get(type(module))
    shape = getattr(before.meta.get("tensor_meta"), "shape", ())
    doubts = (
        (dimensions is None, f"the layer before it is {type(module).__name__}"),
        (type(batch_norm) not in _NORMS or batch_norm.running_mean is None, "it has no ordinary running statistics"),
        (calls[layer] != 1, f"the layer before it runs {calls[layer]} times"),
        (len(before.users) != 1, "the output of the layer before it is used elsewhere too"),
        (len(shape) != dimensions, f"the layer before it gives {len(shape)} axes, so channels may be elsewhere"),
        (_hooked(module) or _hooked(batch_norm), "it or the layer before it has hooks"),
        (_shares(net, module) or _shares(net, batch_norm), "its weights or those of the layer before it are shared"),
        (any(name.startswith((f"{layer}.", f"{norm}.")) for name in read), "its weights are also used directly"),
    )
    return next((_Kept(reason) for doubt, reason in doubts if doubt), layer)


def _hooked(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)


def _shares(net: nn.Module, module: nn.Module) -> bool:
    """Whether the module or one of its parameters has a second name in the network."""
    own = {id(parameter) for parameter in module.parameters(recurse=False)}
    uses = Counter(id(p) for _, p in net.named_parameters(remove_duplicate=False))
    places = sum(found is module for _, found in net.named_modules(remove_duplicate=False))
    return places > 1 or any(uses[key] > 1 for key in own)


def _merged(layer: nn.Module, norm: nn.Module) -> nn.Module:
    """One layer for both; computed in double precision, so that only one rounding is added."""
    wide, norm = copy.deepcopy(layer).double(), copy.deepcopy(norm).double()
    fuse: Callable[..., nn.Module] = fuse_linear_bn_eval if isinstance(wide, nn.Linear) else fuse_conv_bn_eval
    fused = fuse(wide, norm)
    return fused.to(next(layer.parameters()).dtype).requires_grad_(False)
