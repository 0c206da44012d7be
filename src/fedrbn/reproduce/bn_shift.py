"""How far an attack moves the input of each batch-norm layer: the shift that BN_a has to represent.

A network with fixed weights and fixed clean statistics, f(·; BN_c), sees clean images x and attacked images x̃. For the
input of layer l on channel c, let μ, σ² be mean and variance over images and positions for x, and μ̃, σ̃² for x̃:

    mean shift        (1/C) Σ_c |μ̃_c − μ_c| / sqrt(σ²_c + ε₀)         in standard deviations; ε₀ is that of the layer
    variance shift    (1/C) Σ_c |ln((σ̃²_c + ε₀) / (σ²_c + ε₀))|       0.7 is a factor of two

Signs are dropped before the mean over channels, because about as many channels of a layer rise as fall.

| network | what it is |
|---|---|
| `random` | the initial weights; BN_c has the statistics of the clean images |
| `trained` | the weights and the BN_c at the end of training |
| `clipped` | the trained network; x̃ is x clipped to the attack's box, without any noise: a control |
| `stored` | the trained network again, but with its own BN_a and BN_c as (μ̃, σ̃²) and (μ, σ²): no images |
| `domains` | the trained networks of two domains, each with its own clean images, in place of x and x̃: a baseline |

The attack is the run's own, through BN_c. One user represents each domain, an AT user if there is one, with images that
it did not train on. The text `shift trained 1 mean` means layer 1 and the mean over domains; `lowest` and `highest` are
the domains with the smallest and largest value, `variance` is the variance shift.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import cast

import torch
from torch import Tensor, nn

from fedrbn.attacks import PGD, Attack
from fedrbn.data.samples import Client, Samples
from fedrbn.evaluation.accuracy import attack_through, logits_of
from fedrbn.federated.assemble import Assembly, assemble
from fedrbn.nets.dual_bn import DualBatchNorm, DualNet, set_momentum
from fedrbn.randomness import generator
from fedrbn.runs.directory import RunDirectory
from fedrbn.runs.load import Trained, load
from fedrbn.types import Branch, Role, Stats

IMAGES = 100
"""Maximum images of a user."""


@dataclass(frozen=True)
class Moments:
    """Mean and variance of every channel of the input of a batch-norm layer, and the layer's ε₀."""

    mean: Tensor
    variance: Tensor
    eps: float


@dataclass(frozen=True)
class StatisticsShift:
    """The distance of one set of moments from another, as mean over channels."""

    mean: float
    variance: float


def measure(path: Path) -> dict[str, float]:
    """All shifts of a trained run, by their texts."""
    trained, assembly = load(path), assemble(RunDirectory.open(path).experiment())
    clients = one_user_per_domain(assembly.federation.clients)
    pairs: dict[str, list[tuple[list[Moments], list[Moments]]]] = {
        "random": [attacked_moments(calibrated(trained.net, client), client, assembly) for client in clients],
        "trained": [attacked_moments(trained.dual_client(client.id), client, assembly) for client in clients],
        "clipped": [clipped_moments(trained.dual_client(client.id), client, assembly.attack) for client in clients],
        "stored": [own for client in clients if (own := stored_moments(trained, client)) is not None],
    }
    clean = [own for own, _ in pairs["trained"]]
    pairs["domains"] = list(itertools.permutations(clean, 2))
    return {text: number for network, found in pairs.items() for text, number in _texts(network, found)}


def shift(clean: Moments, other: Moments) -> StatisticsShift:
    """The equations in the module docstring."""
    base = clean.variance + clean.eps
    return StatisticsShift(
        mean=((other.mean - clean.mean).abs() / base.sqrt()).mean().item(),
        variance=((other.variance + clean.eps) / base).log().abs().mean().item(),
    )


def _texts(network: str, pairs: Sequence[tuple[list[Moments], list[Moments]]]) -> Iterator[tuple[str, float]]:
    """The numbers for a network's layers, over domains (or pairs of domains)."""
    by_domain = [[shift(*layer) for layer in zip(*pair, strict=True)] for pair in pairs]
    for number, found in enumerate(zip(*by_domain, strict=True), start=1):
        means = [own.mean for own in found]
        yield f"shift {network} {number} mean", fmean(means)
        yield f"shift {network} {number} lowest", min(means)
        yield f"shift {network} {number} highest", max(means)
        yield f"shift {network} {number} variance", fmean(own.variance for own in found)


def one_user_per_domain(clients: Iterable[Client]) -> list[Client]:
    """One user for each domain, an AT user if there is one."""
    found: dict[str, Client] = {}
    for client in clients:
        if client.domain not in found or (client.role is Role.AT and found[client.domain].role is Role.ST):
            found[client.domain] = client
    return list(found.values())


def held_out(client: Client) -> Samples:
    """Images that were not used in training: test, then validation images, because a scale may keep one test image."""
    parts = (client.test, client.validation)
    both = Samples(torch.cat([part.images for part in parts]), torch.cat([part.labels for part in parts]))
    return both.first(IMAGES)


def calibrated(net: DualNet, client: Client) -> DualNet:
    """A copy whose BN_c has the statistics of the user's clean images, computed layer by layer."""
    made = copy.deepcopy(net).eval()
    set_momentum(made, 1.0)
    with torch.no_grad():
        made(held_out(client).pixels(slice(None))[0], Branch.CLEAN, Stats.BATCH)
    return made


def attacked_moments(net: DualNet, client: Client, assembly: Assembly) -> tuple[list[Moments], list[Moments]]:
    """For each layer, the moments for the user's clean images and for the same images attacked."""
    x, y = held_out(client).pixels(slice(None))
    random = generator(assembly.experiment.run.seed, "bn shift", client.id)
    attacked = attack_through(assembly.adversary, [logits_of(net, Branch.CLEAN)], x, y, random)
    return moments(net, x), moments(net, attacked)


def clipped_moments(net: DualNet, client: Client, attack: Attack) -> tuple[list[Moments], list[Moments]]:
    """For each layer, the moments for the user's clean images, and for the same images clipped to the attack's box."""
    x, _ = held_out(client).pixels(slice(None))
    lowest, highest = attack.box if isinstance(attack, PGD) else (0.0, 1.0)
    return moments(net, x), moments(net, x.clamp(lowest, highest))


def moments(net: DualNet, x: Tensor) -> list[Moments]:
    """The moments of the input of each batch-norm layer in f(x; BN_c), in the order of the layers."""
    kept: list[Moments] = []

    def keep(eps: float, _: nn.Module, given: tuple[Tensor, ...]) -> None:
        channels = given[0].double().transpose(0, 1).flatten(1)
        kept.append(Moments(channels.mean(1), channels.var(1, correction=0), eps))

    handles = [layer.register_forward_pre_hook(partial(keep, layer.clean.eps)) for layer in _layers(net)]
    try:
        with torch.no_grad():
            net(x, Branch.CLEAN)
    finally:
        for handle in handles:
            handle.remove()
    return kept


def stored_moments(trained: Trained, client: Client) -> tuple[list[Moments], list[Moments]] | None:
    """An AT user's BN_c and BN_a; None for ST users, whose BN_a is an estimate, and without dual batch norm."""
    layers = _layers(trained.dual_client(client.id))
    if client.role is Role.ST or any(layer.noised is None for layer in layers):
        return None
    clean, noised = ([_held(layer, branch) for layer in layers] for branch in (Branch.CLEAN, Branch.NOISED))
    return clean, noised


def _held(layer: DualBatchNorm, branch: Branch) -> Moments:
    own = layer.branch(branch)
    mean, variance = cast(Tensor, own.running_mean), cast(Tensor, own.running_var)
    return Moments(mean.double(), variance.double(), own.eps)


def _layers(net: DualNet) -> list[DualBatchNorm]:
    return [layer for layer in net.modules() if isinstance(layer, DualBatchNorm)]
