"""Simulated malicious clients, for experiments only: what an attacker inside the federation could send.

An attack is a function from what its client received and would have sent to what it sends instead. `among` inserts it
between the clients and the server of a simulation; a deployment cannot reach this code.

    sign-flip     θ_t − s (θ_k − θ_t): the opposite direction of honest training
    noise         θ_t + a random direction of length s ‖θ_k − θ_t‖
    label-flip    honest training on labels C − 1 − y
    bn-variance   BN_a with s times the variance: activations shrink towards zero
    bn-shift      BN_a with its means moved by s standard deviations in the direction that silences each channel
    bn-swap       BN_c sent as BN_a: robustness is lost, and the values look normal

The last three are attacks by donors on Eq. 3: they train honestly, so they are as similar to their neighbours as
honest donors, and falsify only BN_a.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from torch import Generator

from fedrbn.config import Experiment
from fedrbn.data.samples import Client, Samples
from fedrbn.errors import ConfigError
from fedrbn.federated.protocol import Execute, Job, Result, Round, Upload
from fedrbn.nets.state import BNNames
from fedrbn.randomness import generator
from fedrbn.types import Branch, Member, Role, Tensors

Tamper: TypeAlias = Callable[[Round, Upload, Generator], Upload]
"""(the round, the honest upload, randomness) → what is sent instead."""


@dataclass(frozen=True)
class SignFlip:
    """θ_t − s (θ_k − θ_t)."""

    strength: float = 5.0

    def __call__(self, round_: Round, upload: Upload, _random: Generator) -> Upload:
        """See `Tamper`."""
        flipped = {name: round_.shared[name].lerp(own, -self.strength) for name, own in upload.shared.items()}
        return replace(upload, shared=flipped)


@dataclass(frozen=True)
class ScaledNoise:
    """A random direction, s times as long as the honest update."""

    strength: float = 5.0

    def __call__(self, round_: Round, upload: Upload, random: Generator) -> Upload:
        """See `Tamper`."""
        drawn = {name: torch.randn(own.shape, generator=random) for name, own in upload.shared.items()}
        honest = _length({name: own - round_.shared[name] for name, own in upload.shared.items()})
        scale = self.strength * honest / _length(drawn)
        return replace(upload, shared={name: round_.shared[name] + scale * noise for name, noise in drawn.items()})


@dataclass(frozen=True)
class Honest:
    """The client's upload unchanged: the attack was in its data."""

    def __call__(self, _round: Round, upload: Upload, _random: Generator) -> Upload:
        """See `Tamper`."""
        return upload


@dataclass(frozen=True)
class Variance:
    """BN_a with s times its variance."""

    layers: tuple[BNNames, ...]
    strength: float = 1e4

    def __call__(self, _round: Round, upload: Upload, _random: Generator) -> Upload:
        """See `Tamper`."""
        grown = {name.variance: upload.personal[name.variance] * self.strength for name in _noised(self.layers)}
        return replace(upload, personal=upload.personal | grown)


@dataclass(frozen=True)
class Shift:
    """BN_a with every mean moved by s standard deviations, upwards for w ≥ 0: w (x − μ)/σ + b ends below zero."""

    layers: tuple[BNNames, ...]
    strength: float = 10.0

    def __call__(self, _round: Round, upload: Upload, _random: Generator) -> Upload:
        """See `Tamper`."""
        everything = upload.shared | upload.personal
        clean = {layer.layer: layer for layer in self.layers if layer.branch is Branch.CLEAN}
        moved: Tensors = {}
        for layer in _noised(self.layers):
            affine = layer.affine or clean[layer.layer].affine
            mean, variance = (upload.personal[name] for name in layer.statistics)
            side = torch.where(everything[affine[0]] < 0, -1.0, 1.0) if affine else torch.ones_like(mean)
            moved[layer.mean] = mean + self.strength * side * variance.sqrt()
        return replace(upload, personal=upload.personal | moved)


@dataclass(frozen=True)
class Swap:
    """BN_c in place of BN_a."""

    layers: tuple[BNNames, ...]

    def __call__(self, _round: Round, upload: Upload, _random: Generator) -> Upload:
        """See `Tamper`."""
        clean = {layer.layer: layer for layer in self.layers if layer.branch is Branch.CLEAN}
        swapped = {
            theirs: upload.personal[own].clone()
            for layer in _noised(self.layers)
            for theirs, own in zip(layer.statistics, clean[layer.layer].statistics, strict=True)
        }
        return replace(upload, personal=upload.personal | swapped)


@dataclass(frozen=True)
class Malice:
    """Who attacks, and how."""

    attackers: frozenset[str]
    tamper: Tamper
    flips_labels: bool = False

    def data(self, clients: Mapping[str, Client], classes: int) -> dict[str, Client]:
        """The clients, with the training data of the attackers changed as the attack requires."""
        if not self.flips_labels:
            return dict(clients)
        return {
            name: replace(client, train=Samples(client.train.images, classes - 1 - client.train.labels))
            if name in self.attackers
            else client
            for name, client in clients.items()
        }

    @contextmanager
    def among(self, place: AbstractContextManager[Execute]) -> Iterator[Execute]:
        """The same executor, with the attackers' uploads changed on their way to the server."""
        with place as execute:

            def tampered(round_: Round, jobs: Iterable[Job]) -> Iterator[Result]:
                for result in execute(round_, jobs):
                    if isinstance(result, Upload) and result.client in self.attackers:
                        random = generator(round_.seed, "malice", round_.number, result.client)
                        yield self.tamper(round_, result, random)
                    else:
                        yield result

            yield tampered


DONOR_ATTACKS = ("bn-variance", "bn-shift", "bn-swap")


def attackers(experiment: Experiment, members: Sequence[Member]) -> frozenset[str]:
    """The attackers: a share of the clients, or of the AT users for attacks by donors; none without [malice]."""
    chosen = experiment.malice
    if chosen.attack is None:
        return frozenset()
    able = [member.id for member in members if member.role is Role.AT or chosen.attack not in DONOR_ATTACKS]
    count = max(1, round((chosen.share or 0.2) * len(able)))
    order = torch.randperm(len(able), generator=generator(experiment.run.seed, "malice", "who"))
    return frozenset(able[i] for i in order[:count].tolist())


def from_config(experiment: Experiment, members: Sequence[Member], layers: tuple[BNNames, ...]) -> Malice | None:
    """The attack that [malice] describes; None without one."""
    name = experiment.malice.attack
    if name is None:
        return None
    if name in DONOR_ATTACKS and not _noised(layers):
        raise ConfigError(
            f"got malice.attack = {name!r} with method {experiment.method.name!r}, which has no BN_a to falsify; "
            "expected a method with dual batch norm, such as fedrbn."
        )
    strength: dict[str, Any] = {} if experiment.malice.strength is None else {"strength": experiment.malice.strength}
    made: dict[str, Callable[[], Tamper]] = {
        "sign-flip": lambda: SignFlip(**strength),
        "noise": lambda: ScaledNoise(**strength),
        "label-flip": Honest,
        "bn-variance": lambda: Variance(layers, **strength),
        "bn-shift": lambda: Shift(layers, **strength),
        "bn-swap": lambda: Swap(layers),
    }
    return Malice(attackers(experiment, members), made[name](), flips_labels=name == "label-flip")


def malice_record(experiment: Experiment, members: Sequence[Member]) -> dict[str, Any]:
    """The part of the record about simulated attackers; empty if there are none."""
    who = attackers(experiment, members)
    return {"malice": {**experiment.malice.model_dump(exclude_none=True), "attackers": sorted(who)}} if who else {}


def _noised(layers: Sequence[BNNames]) -> list[BNNames]:
    return [layer for layer in layers if layer.branch is Branch.NOISED]


def _length(vector: Tensors) -> float:
    return float(torch.stack([part.double().norm() for part in vector.values()]).norm())
