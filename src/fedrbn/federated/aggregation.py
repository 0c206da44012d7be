"""What is averaged and what stays with its client; the weighted mean of what is averaged, folded as it arrives."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from torch import Tensor

from fedrbn.nets.dual_bn import DualNet
from fedrbn.nets.state import BNNames, batch_norms, tensors
from fedrbn.types import Branch, Tensors


class Local(Enum):
    """What a method keeps per client and never averages."""

    NOTHING = "nothing"
    """FedAvg: batch-norm statistics are averaged like everything else."""
    STATISTICS = "bn-stats"
    """The statistics (μ, σ²) stay; w, b count as part of θ, as the paper's notation has it."""
    BATCH_NORM = "bn"
    """All of batch norm stays, as in FedBN."""
    EVERYTHING = "everything"
    """No federation at all."""


@dataclass(frozen=True)
class Layout:
    """The names of a network's tensors by what happens to them between rounds."""

    shared: frozenset[str]
    """Averaged by the server."""
    personal: frozenset[str]
    """Kept for each client. Counts of batches and other integers are here: they are never averaged."""
    noised: frozenset[str]
    """On the noised branch of a dual network, shared or personal: only AT users change and upload them."""
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


@dataclass(frozen=True)
class Contribution:
    """One client's shared tensors (not necessarily all of them) and the weight they have in the mean."""

    client: str
    tensors: Tensors
    weight: float
    adversarial_loss: float | None = None
    """The client's mean training loss, if it trained adversarially."""


Aggregate: TypeAlias = Callable[[Tensors, Iterable[Contribution]], Tensors]
"""(the shared weights of the last round, contributions) → the new shared weights."""


def mean(shared: Tensors, contributions: Iterable[Contribution]) -> Tensors:
    """Σ_k a_k θ_k / Σ_k a_k, name by name over the clients that sent that name; a name nobody sent keeps its value.

    Contributions are folded one by one, so memory is one model whatever the number of clients.
    """
    total: dict[str, float] = {}
    average: dict[str, Tensor] = {}
    for contribution in contributions:
        for name, tensor in contribution.tensors.items():
            total[name] = total.get(name, 0.0) + contribution.weight
            if name not in average:
                average[name] = tensor.clone()
            else:
                average[name].lerp_(tensor, contribution.weight / total[name])
    return {name: average.get(name, tensor) for name, tensor in shared.items()}


def carried(weights: Tensors, velocity: Tensors, beta: float) -> Tensors:
    """The server's momentum: θ + β v, where v is how far θ went in the round before; without v, θ itself.

    For weights only, never for statistics of batch norm: an overshooting variance may be negative.
    """
    return {
        name: theta.add(velocity[name], alpha=beta) if name in velocity else theta for name, theta in weights.items()
    }
