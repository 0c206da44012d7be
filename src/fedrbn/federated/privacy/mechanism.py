"""Differential privacy of what leaves a client: clipped, with Gaussian noise, and accounted for.

The unit is a client: two federations are neighbours if all data of one client are others. A release is a vector x that
is clipped to length C, so that whatever the data, two possible releases differ by at most ‖x − x'‖ ≤ ‖x‖ + ‖x'‖ ≤ 2 C:
the sensitivity is Δ = 2 C, and noise N(0, σ²) with σ = z Δ in every coordinate makes it a Gaussian mechanism with noise
multiplier z. Releases of all rounds compose; `fedrbn.federated.privacy.mechanism.accountant` adds them up.

What is clipped is always a change against something the receiver knows already (what the server sent, or the release
before), which costs no privacy:

    statistics   (μ − μ_t) / σ_t and ln σ² − ln σ_t² of every channel: noise in units of the channel's own spread, and a
                 variance stays positive whatever the noise. As the paper proposes for BN statistics.
    update       θ_k − θ_t and the change of the client's own w, b.

Both are *local*: the noise is added by the client, and the server need not be trusted. `PrivateMean` is *central*: the
server clips, averages and adds noise once, to the mean, of σ = z · 2 C / n; that protects from all but the server.

Not covered: the number of samples and of steps, the mean training loss and the seconds that an upload reports.
"""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor

from fedrbn import randomness
from fedrbn.config import Experiment
from fedrbn.errors import ConfigError
from fedrbn.federated.aggregation.mean import Contribution, mean
from fedrbn.federated.aggregation.robust import cut
from fedrbn.federated.donors import BN_EPSILON
from fedrbn.federated.protocol import Round, Train, Upload
from fedrbn.federated.training.sgd import Batch
from fedrbn.nets.dual_bn import DualNet
from fedrbn.nets.state import BNNames, batch_norms, load, tensors
from fedrbn.types import Tensors

FURTHEST = 5.0
"""A release of statistics moves no channel by more: e⁵ times the variance is nonsense that noise can make, and cutting
what has been released costs no privacy."""


@dataclass(frozen=True)
class Mechanism:
    """The Gaussian mechanism on a vector."""

    clip: float
    """C, the length to which the vector is cut."""
    noise: float
    """z, the noise multiplier: the standard deviation of the noise over the sensitivity."""

    def __post_init__(self) -> None:
        if not (self.clip > 0 and self.noise > 0):
            raise ConfigError(f"got clip {self.clip} and noise {self.noise}; expected both above 0.")

    @property
    def sensitivity(self) -> float:
        """2 C: how far two releases can be apart when all data of the client are others."""
        return 2 * self.clip

    @property
    def sigma(self) -> float:
        """The standard deviation of the noise in every coordinate."""
        return self.noise * self.sensitivity

    def __call__(self, vector: Tensors, random: Generator) -> Tensors:
        """The vector, given in parts, clipped as a whole and with noise in every coordinate."""
        length = math.hypot(*(part.double().norm().item() for part in vector.values()))
        shrink = min(1.0, self.clip / length) if length > 0 else 1.0
        return {
            name: part * shrink + self.sigma * torch.randn(part.shape, generator=random, dtype=part.dtype)
            for name, part in vector.items()
        }


@dataclass(frozen=True)
class Privacy:
    """What a client does to its uploads before they leave; the default does nothing."""

    statistics: Mechanism | None = None
    every_step: bool = False
    """Noise on the statistics at every local step, as the paper words it, besides that on the upload."""
    update: Mechanism | None = None
    secret: bool = False
    """Noise from the operating system's randomness instead of the run's seed, which whoever knows it can subtract."""

    def random(self, round_: Round, client: str) -> Generator:
        """Where this client's noise of this round comes from."""
        if self.secret:
            return torch.Generator().manual_seed(secrets.randbits(63))
        return randomness.generator(round_.seed, "round", round_.number, "client", client, "privacy")


def from_config(experiment: Experiment) -> Privacy:
    """What clients of this experiment do."""
    chosen = experiment.privacy
    update = None
    if chosen.update_noise is not None and chosen.update_at != "server":
        update = Mechanism(chosen.update_clip or 1.0, chosen.update_noise)
    statistics = None
    if chosen.statistics_noise is not None:
        statistics = Mechanism(chosen.statistics_clip or 1.0, chosen.statistics_noise)
    if chosen.secret and (statistics or update) and experiment.faults.on_too_few == "wait":
        raise ConfigError(
            "got privacy.secret with faults.on_too_few = 'wait'; expected 'stop', because a client that is asked again "
            "answers with new noise, and the ε of a run counts one answer per round. Leave on_too_few out."
        )
    return Privacy(statistics, chosen.statistics_when == "step", update, bool(chosen.secret))


class Protection:
    """A client's uploads of one round: made right after the network has been loaded with what the client got."""

    def __init__(self, privacy: Privacy, net: DualNet, round_: Round, job: Train, kept: frozenset[str]) -> None:
        self.privacy = privacy
        self.net = net
        self.known = round_.shared | job.personal
        """What the server knows; a change is a change against this."""
        self.random = privacy.random(round_, job.client)
        self.layers = [layer for layer in batch_norms(net) if not kept.intersection(layer.statistics)]
        self.names = {name for layer in self.layers for name in layer.statistics}

    def steps(self, batches: Iterable[Batch]) -> Iterable[Batch]:
        """The batches; with noise at every step, what each changed in the statistics is clipped and made noisy."""
        return self._noised(batches) if self.privacy.statistics and self.privacy.every_step else batches

    def _noised(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        for batch in batches:
            yield batch  # the training step happens while this generator waits
            own = tensors(self.net)
            now = {name: own[name].to("cpu", copy=True) for name in self.names}
            released = self._statistics(now)
            load(self.net, released)
            self.known = self.known | released

    def protected(self, upload: Upload) -> Upload:
        """The upload as it may leave the client."""
        changed: Tensors = {}
        everything = upload.shared | upload.personal
        if self.privacy.statistics is not None:
            changed |= self._statistics({name: everything[name] for name in self.names})
        if self.privacy.update is not None:
            moved = {
                name: tensor - self.known[name]
                for name, tensor in everything.items()
                if tensor.is_floating_point() and name not in self.names
            }
            noisy = self.privacy.update(moved, self.random)
            changed |= {name: self.known[name] + change for name, change in noisy.items()}
        return replace(
            upload,
            shared={name: changed.get(name, tensor) for name, tensor in upload.shared.items()},
            personal={name: changed.get(name, tensor) for name, tensor in upload.personal.items()},
        )

    def _statistics(self, now: Tensors) -> Tensors:
        if self.privacy.statistics is None:
            return now
        noisy = self.privacy.statistics(coordinates(self.known, now, self.layers), self.random)
        return from_coordinates(self.known, noisy, self.layers)


def coordinates(known: Tensors, now: Tensors, layers: Sequence[BNNames]) -> Tensors:
    """How statistics have moved: the mean in units of the known spread, the variance by its logarithm; in float64."""
    moved: Tensors = {}
    for layer in layers:
        before, after = _variance(known, layer), _variance(now, layer)
        moved[layer.mean] = (now[layer.mean].double() - known[layer.mean].double()) / before.sqrt()
        moved[layer.variance] = (after / before).log()
    return moved


def from_coordinates(known: Tensors, moved: Tensors, layers: Sequence[BNNames]) -> Tensors:
    """The statistics that have moved so: `coordinates` backwards, cut where noise has made nonsense."""
    values: Tensors = {}
    for layer in layers:
        before = _variance(known, layer)
        shift, stretch = (moved[name].clamp(-FURTHEST, FURTHEST) for name in layer.statistics)
        mean = known[layer.mean].double() + shift * before.sqrt()
        variance = (before * stretch.exp() - BN_EPSILON).clamp(min=BN_EPSILON)
        values[layer.mean] = mean.to(known[layer.mean].dtype)
        values[layer.variance] = variance.to(known[layer.variance].dtype)
    return values


def _variance(values: Tensors, layer: BNNames) -> Tensor:
    return values[layer.variance].double() + BN_EPSILON


@dataclass(frozen=True)
class PrivateMean:
    """Central privacy of θ: the mean of updates clipped to length C, plus N(0, (z · 2 C / n)²) in every coordinate.

    All n clients weigh the same, so that one client's share is known. A tensor that only some send is averaged among
    those; n is then the smallest number of senders of any tensor. Uploads are folded as they come: memory is one model.
    The server sees every update as it is: this protects against whoever sees only the result.
    """

    mechanism: Mechanism
    seed: int | None
    """None takes the operating system's randomness."""

    def __call__(self, shared: Tensors, contributions: Iterable[Contribution]) -> Tensors:
        """See `Aggregate`."""
        senders: dict[str, int] = {}

        def clipped() -> Iterator[Contribution]:
            for contribution in contributions:
                for name in contribution.tensors:
                    senders[name] = senders.get(name, 0) + 1
                yield replace(cut(shared, contribution, self.mechanism.clip), weight=1.0)

        result = mean(shared, clipped())
        sigma = self.mechanism.sigma / min(senders.values(), default=1)
        random = self._random(shared)
        return {
            name: tensor + sigma * torch.randn(tensor.shape, generator=random, dtype=tensor.dtype)
            if name in senders
            else tensor
            for name, tensor in result.items()
        }

    def _random(self, shared: Tensors) -> Generator:
        """This round's stream: an aggregation does not know the round's number, but no two start from equal weights."""
        if self.seed is None:
            return torch.Generator().manual_seed(secrets.randbits(63))
        digest = hashlib.blake2b(digest_size=16)
        for name in sorted(shared):
            digest.update(shared[name].contiguous().numpy().tobytes())
        return randomness.generator(self.seed, "private mean", digest.hexdigest())
