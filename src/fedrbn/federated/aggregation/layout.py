"""What is averaged and what stays with its client, by the type of the layer that owns a tensor."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from fedrbn.nets.dual_bn import DualNet
from fedrbn.nets.state import BNNames, batch_norms, tensors
from fedrbn.types import Branch


class Local(Enum):
    """What a method keeps per client and never averages."""

    NOTHING = "nothing"
    """FedAvg: batch-norm statistics are averaged like everything else."""
    STATISTICS = "bn-stats"
    """The statistics (μ, σ²) stay local; w and b are part of θ, as in the paper's notation."""
    BATCH_NORM = "bn"
    """All of batch norm stays local, as in FedBN."""
    EVERYTHING = "everything"
    """No federation: nothing is shared."""


@dataclass(frozen=True)
class Layout:
    """The names of a network's tensors by what happens to them between rounds."""

    shared: frozenset[str]
    """Averaged by the server."""
    personal: frozenset[str]
    """Kept per client. This includes batch counters and other integers, which are never averaged."""
    noised: frozenset[str]
    """BN_a of a dual network, shared or personal: only AT users change and upload it."""
    batch_norms: tuple[BNNames, ...]


def layout(net: DualNet, local: Local) -> Layout:
    """Sort the tensors of a network, by the type of the layer that owns them."""
    layers = batch_norms(net)
    statistics = {name for layer in layers for name in layer.statistics}
    affine = {name for layer in layers for name in layer.affine}
    floating = {name for name, tensor in tensors(net).items() if tensor.is_floating_point()}
    kept = {
        Local.NOTHING: set[str](),
        Local.STATISTICS: statistics,
        Local.BATCH_NORM: statistics | affine,
        Local.EVERYTHING: floating,
    }[local]
    shared = frozenset(floating - kept)
    return Layout(
        shared=shared,
        personal=frozenset(tensors(net).keys() - shared),
        noised=frozenset(
            name
            for layer in layers
            if layer.branch is Branch.NOISED
            for name in (*layer.statistics, layer.count, *layer.affine)
        ),
        batch_norms=layers,
    )
