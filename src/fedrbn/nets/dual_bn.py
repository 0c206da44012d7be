"""Eq. 2: batch normalisation with two sets of statistics, f(x; BN_c) and f(x; BN_a), in any PyTorch network.

BN(x; μ, σ) = w (x − μ) / sqrt(σ² + ε₀) + b. A *branch* is one set of (μ, σ²): CLEAN is BN_c, NOISED is BN_a.

    net = dual(my_network)                            # a copy; every BatchNorm1d/2d/3d found by type
    net(x, Branch.NOISED, Stats.FROZEN)               # branch and use of statistics are arguments of the call
    net.paired(x, x_adv, Stats.BATCH, Stats.BATCH)    # both branches in one pass over the joined batch
    plain(net, Branch.NOISED)                         # an ordinary network again, ready to deploy

`single(my_network)` gives the same interface to a network with one set of statistics, which both branches use. So the
baselines without dual batch norm run through the same training code.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, TypeAlias, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm, _LazyNormBase
from torch.nn.modules.dropout import _DropoutNd

from fedrbn.errors import NetworkError
from fedrbn.nets.fold import fold
from fedrbn.types import Branch, Stats


class Affine(Enum):
    """Whether the two branches share their trainable w, b or have one pair each."""

    SHARED = "shared"
    SEPARATE = "separate"


class _Segment(NamedTuple):
    """Consecutive rows of the batch and how batch norm treats them."""

    rows: int
    branch: Branch
    stats: Stats


@dataclass
class _Segments:
    """Batch norm by segments of rows, each through one branch of the layer."""

    segments: tuple[_Segment, ...]
    together: bool = False
    """All segments use the same rows, which are passed only once: the first layer that runs splits them."""

    def __call__(self, layer: DualBatchNorm, x: Tensor) -> Tensor:
        """See `NormaliseLayer`."""
        if len(self.segments) == 1:
            return layer.normalise(x, self.segments[0].branch, self.segments[0].stats)
        parts = [x] * len(self.segments) if self.together else _parted(x, self.segments)
        self.together = False
        return torch.cat(
            [layer.normalise(part, s.branch, s.stats) for part, s in zip(parts, self.segments, strict=True)]
        )


NormaliseLayer: TypeAlias = "Callable[[DualBatchNorm, Tensor], Tensor]"
"""What batch-norm layers do in a call of the network: from the layer and its input to its output."""

_CALL: ContextVar[NormaliseLayer | None] = ContextVar("fedrbn dual batch-norm call", default=None)
_HELD: ContextVar[frozenset[DualBatchNorm]] = ContextVar("fedrbn held batch norms", default=frozenset())


@contextmanager
def _call(normalise: NormaliseLayer) -> Iterator[None]:
    """Set what the batch-norm layers do within this block; nothing stays switched afterwards."""
    token = _CALL.set(normalise)
    try:
        yield
    finally:
        _CALL.reset(token)


@contextmanager
def frozen_layers(layers: Iterable[DualBatchNorm]) -> Iterator[None]:
    """Within this block these layers are frozen: they use their running statistics in every network call."""
    token = _HELD.set(_HELD.get() | frozenset(layers))
    try:
        yield
    finally:
        _HELD.reset(token)


class DualBatchNorm(nn.Module):
    """One batch-norm layer with a clean and a noised set of statistics; `noised` is None if there is only one set."""

    clean: _BatchNorm
    noised: _BatchNorm | None

    def __init__(self, clean: _BatchNorm, noised: _BatchNorm | None) -> None:
        super().__init__()
        self.clean = clean
        self.noised = noised

    def branch(self, branch: Branch) -> _BatchNorm:
        """The ordinary layer that holds this branch's statistics."""
        return self.clean if branch is Branch.CLEAN or self.noised is None else self.noised

    def affine(self, branch: Branch) -> _BatchNorm:
        """The ordinary layer that holds this branch's w, b: the clean one unless the affine is separate."""
        layer = self.branch(branch)
        return layer if layer.affine else self.clean

    def forward(self, x: Tensor) -> Tensor:
        """Normalise as the surrounding network call specifies."""
        call = _CALL.get()
        if call is None:
            raise NetworkError(
                "got a dual batch-norm layer called on its own; expected a call of the whole network with the "
                "branch: net(x, Branch.CLEAN, Stats.FROZEN). For an ordinary network use plain(net, branch)."
            )
        return call(self, x)

    def normalise(self, x: Tensor, branch: Branch, stats: Stats) -> Tensor:
        """BN(x; μ, σ) with this branch's statistics, or with those of the batch."""
        layer, affine = self.branch(branch), self.affine(branch)
        layer._check_input_dim(x)  # type: ignore[no-untyped-call]
        mean, variance, momentum = cast(Tensor, layer.running_mean), cast(Tensor, layer.running_var), layer.momentum
        if self in _HELD.get():
            stats = Stats.FROZEN
        if stats is Stats.FROZEN:
            # The gradient needs the current values. PyTorch keeps only a reference, and does not notice if a BATCH
            # pass through the same branch changes them before `backward`.
            mean, variance = mean.clone(), variance.clone()
        else:
            count = cast(Tensor, layer.num_batches_tracked)
            count.add_(1)
            if momentum is None:
                momentum = 1.0 / float(count)
        return F.batch_norm(
            x,
            mean,
            variance,
            affine.weight,
            affine.bias,
            training=stats is Stats.BATCH,
            momentum=momentum or 0.0,
            eps=layer.eps,
        )


def _parted(x: Tensor, segments: tuple[_Segment, ...]) -> tuple[Tensor, ...]:
    """The rows of each segment; a layer may see several rows per input, such as patches of an image."""
    rows = sum(segment.rows for segment in segments)
    if x.shape[0] % rows:
        raise NetworkError(
            f"got {x.shape[0]} rows at a batch-norm layer of a joined pass; expected a multiple of the {rows} "
            "inputs. This network mixes samples before the layer: call it once per branch instead."
        )
    repeat = x.shape[0] // rows
    return torch.split(x, [segment.rows * repeat for segment in segments])


class DualNet(nn.Module):
    """A network whose batch-norm branch is an argument of the call.

    With a `precision` below float32, convolutions and matrix products use it; weights and logits stay float32.
    """

    def __init__(self, network: nn.Module, precision: torch.dtype | None = None) -> None:
        super().__init__()
        self.network = network
        self.precision = precision

    def forward(self, x: Tensor, branch: Branch, stats: Stats = Stats.FROZEN) -> Tensor:
        """Logits f(x; BN_branch)."""
        return self.through(x, _Segments((_Segment(len(x), branch, stats),)), self.precision)

    @property
    def device(self) -> torch.device:
        """The device of its weights."""
        return next(self.parameters()).device

    @property
    def branches(self) -> tuple[Branch, ...]:
        """The branches that differ."""
        dual = any(layer.noised is not None for layer in self.modules() if isinstance(layer, DualBatchNorm))
        return tuple(Branch) if dual else (Branch.CLEAN,)

    def logits(self, branch: Branch) -> Callable[[Tensor], Tensor]:
        """The network as deployed, a function of pixels: frozen statistics, float32."""
        return lambda x: self.through(x, _Segments((_Segment(len(x), branch, Stats.FROZEN),)))

    def surface(self, branch: Branch, example: Tensor) -> Callable[[Tensor], Tensor]:
        """The same function for differentiation: batch norm is folded where that is exact, which is faster.

        `example` is a batch like the inputs of later calls.
        """
        return fold(plain(self, branch), example).net

    def through(
        self,
        x: Tensor,
        normalise: NormaliseLayer,
        precision: torch.dtype | None = None,
        tensors: Mapping[str, Tensor] | None = None,
    ) -> Tensor:
        """Logits with batch norm as given and products in this precision, or in float32.

        `tensors` replace those of `network` that have the same names.
        """
        # Without autocast's cache, which would keep the weights from before an optimizer step.
        lower = nullcontext() if precision is None else torch.autocast(x.device.type, precision, cache_enabled=False)
        with _call(normalise), lower:
            logits = cast(Tensor, functional_call(self.network, dict(tensors), (x,)) if tensors else self.network(x))
        return logits.to(x.dtype) if precision is not None else logits

    def paired(
        self, clean: Tensor, noised: Tensor, clean_stats: Stats = Stats.FROZEN, noised_stats: Stats = Stats.FROZEN
    ) -> tuple[Tensor, Tensor]:
        """Logits (f(clean; BN_c), f(noised; BN_a)) from one pass over the joined batch.

        Each part uses and updates only its own branch's statistics, so this equals two passes up to float rounding and
        saves the overhead of the second pass. If both are the same tensor, everything before the network's first batch
        norm is computed once for both.
        """
        segments = (
            _Segment(len(clean), Branch.CLEAN, clean_stats),
            _Segment(len(noised), Branch.NOISED, noised_stats),
        )
        together = clean is noised and _forks_at_first_norm(self.network)
        x = clean if together else torch.cat([clean, noised])
        logits = self.through(x, _Segments(segments, together), self.precision)
        first, second = torch.split(logits, [len(clean), len(noised)])
        return first, second


def _forks_at_first_norm(network: nn.Module) -> bool:
    """Whether everything that the network computes passes through one batch norm first, without dropout before it.

    True only if the order of layers proves it: in `nn.Sequential` containers, at any depth of nesting.
    """
    if isinstance(network, DualBatchNorm):
        return True
    if type(network) is not nn.Sequential:
        return False
    for layer in network:
        if any(isinstance(module, DualBatchNorm) for module in layer.modules()):
            return _forks_at_first_norm(layer)
        if any(isinstance(module, _DropoutNd) for module in layer.modules()):
            return False
    return False


def dual(net: nn.Module, affine: Affine = Affine.SHARED) -> DualNet:
    """A copy of `net` in which every batch-norm layer has a clean and a noised set of statistics.

    Both sets start with the layer's values. With `Affine.SEPARATE` each branch also has its own w, b.
    """

    def split(layer: _BatchNorm) -> nn.Module:
        noised = copy.deepcopy(layer)
        if affine is Affine.SHARED:
            noised.affine = False
            noised.weight = noised.bias = None  # type: ignore[assignment]
        return DualBatchNorm(layer, noised)

    network, found = _replaced(net, _BatchNorm, lambda layer: split(_checked(layer)))
    if not found:
        raise NetworkError(
            f"got {type(net).__name__} without a batch-norm layer; expected at least one BatchNorm1d, 2d or 3d, "
            "because FedRBN carries robustness in batch-norm statistics. Add batch norm, or use a method with a "
            "single set of statistics such as fatavg."
        )
    return DualNet(network)


def single(net: nn.Module) -> DualNet:
    """A copy of `net` whose branches both use its one set of statistics: for FATAvg, FATBN and similar methods."""
    network, _ = _replaced(net, _BatchNorm, lambda layer: DualBatchNorm(_checked(layer), None))
    return DualNet(network)


def plain(net: DualNet, branch: Branch) -> nn.Module:
    """An ordinary network in eval mode whose logits equal `net.eval()(x, branch, Stats.FROZEN)` bit for bit."""

    def merge(layer: DualBatchNorm) -> nn.Module:
        merged, affine = copy.deepcopy(layer.branch(branch)), layer.affine(branch)
        merged.affine = affine.affine
        merged.weight, merged.bias = copy.deepcopy(affine.weight), copy.deepcopy(affine.bias)
        return merged

    network, _ = _replaced(net.network, DualBatchNorm, merge)
    return network.eval()


def set_momentum(net: DualNet, momentum: float) -> None:
    """Set the momentum of every batch norm: the weight of each batch in the running statistics."""
    for layer in net.modules():
        if isinstance(layer, _BatchNorm):
            layer.momentum = momentum


def _checked(layer: _BatchNorm) -> _BatchNorm:
    """Raise an error for layers that cannot have a second set of running statistics or would behave differently."""
    kind = type(layer).__name__
    if isinstance(layer, _LazyNormBase):
        raise NetworkError(
            f"got {kind}, whose size is not known yet; expected a network that has seen an input. "
            "Run one batch through it before converting it."
        )
    if layer.running_mean is None or layer.running_var is None:
        raise NetworkError(
            f"got {kind} with track_running_stats=False; expected running statistics, which are what FedRBN "
            "propagates. Build the network with track_running_stats=True."
        )
    if type(layer).forward is not _BatchNorm.forward:
        raise NetworkError(
            f"got {kind}, a batch norm with its own forward method; expected BatchNorm1d, 2d or 3d. "
            "Replace it with an ordinary batch-norm layer (and its activation, if any, with a module after it)."
        )
    return layer


_M = TypeVar("_M", bound=nn.Module)


def _replaced(net: nn.Module, kind: type[_M], convert: Callable[[_M], nn.Module]) -> tuple[nn.Module, int]:
    """A deep copy of `net` with each module of `kind` converted once, even if it is used in several places."""
    if isinstance(net, DualNet):
        raise NetworkError("got a network that is already converted; expected an ordinary one. Use plain(net, branch).")
    root = nn.ModuleList([copy.deepcopy(net)])
    converted: dict[int, nn.Module] = {}
    for parent in list(root.modules()):
        for name, child in parent._modules.items():
            if isinstance(child, kind):
                if id(child) not in converted:
                    converted[id(child)] = convert(child)
                parent._modules[name] = converted[id(child)]
    return root[0], len(converted)
