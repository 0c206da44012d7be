"""Differential privacy of what leaves a client: clipped, with Gaussian noise, and accounted for.

The unit is a client: two federations are neighbours if they differ in the data of one client. A release is a vector x
that is clipped to norm C, so for any data two possible releases differ by at most ‖x − x'‖ ≤ ‖x‖ + ‖x'‖ ≤ 2 C: the
sensitivity is Δ = 2 C. Noise N(0, σ²) with σ = z Δ in every coordinate makes this a Gaussian mechanism with noise
multiplier z. Releases of all rounds compose; `fedrbn.federated.privacy.accountant` adds them up.

What is clipped is always a change relative to something that the receiver already knows (what the server sent, or the
previous release), which costs no privacy:

    statistics   (μ − μ_t) / σ_t and ln σ² − ln σ_t² of every channel: noise is in units of the channel's standard
                 deviation, and a variance stays positive. The paper proposes noise on BN statistics.
    update       θ_k − θ_t and the change of the client's own w, b.

Both are *local*: the client adds the noise, and the server need not be trusted. `PrivateMean` is *central*: the server
clips, averages and adds noise with σ = z · 2 C / n once, to the mean. That protects against all but the server.

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
"""A release of statistics moves no channel by more than this: noise alone can give an absurd e⁵ times the variance, and
clipping a value after its release costs no privacy."""


@dataclass(frozen=True)
class Mechanism:
    """The Gaussian mechanism on a vector."""

    clip: float
    """C, the norm to which the vector is clipped."""
    noise: float
    """z, the noise multiplier: the standard deviation of the noise divided by the sensitivity."""

    def __post_init__(self) -> None:
        if not (self.clip > 0 and self.noise > 0):
            raise ConfigError(f"got clip {self.clip} and noise {self.noise}; expected both above 0.")

    @property
    def sensitivity(self) -> float:
        """2 C: the largest distance between two releases when all data of the client change."""
        return 2 * self.clip

    @property
    def sigma(self) -> float:
        """The standard deviation of the noise in every coordinate."""
        return self.noise * self.sensitivity

    def __call__(self, vector: Tensors, random: Generator) -> Tensors:
        """The vector, given in parts, clipped as a whole, with noise in every coordinate."""
        length = math.hypot(*(part.double().norm().item() for part in vector.values()))
        shrink = min(1.0, self.clip / length) if length > 0 else 1.0
        return {
            name: part * shrink + self.sigma * torch.randn(part.shape, generator=random, dtype=part.dtype)
            for name, part in vector.items()
        }


@dataclass(frozen=True)
class Privacy:
    """What a client applies to its uploads before sending them; the default changes nothing."""

    statistics: Mechanism | None = None
    every_step: bool = False
    """Noise on the statistics at every local step, as described in the paper, in addition to that on the upload."""
    update: Mechanism | None = None
    secret: bool = False
    """Noise from the operating system's randomness, not from the run's seed: whoever knows the seed can subtract it."""

    def random(self, round_: Round, client: str) -> Generator:
        """The source of this client's noise in this round."""
        if self.secret:
            return torch.Generator().manual_seed(secrets.randbits(63))
        return randomness.generator(round_.seed, "round", round_.number, "client", client, "privacy")


def from_config(experiment: Experiment) -> Privacy:
    """The privacy settings of the clients of this experiment."""
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
            "answers with new noise, but the ε of a run counts one answer per round. Leave on_too_few out."
        )
    return Privacy(statistics, chosen.statistics_when == "step", update, bool(chosen.secret))


class Protection:
    """Protects a client's upload of one round; created right after the received weights are loaded into the network."""

    def __init__(self, privacy: Privacy, net: DualNet, round_: Round, job: Train, kept: frozenset[str]) -> None:
        self.privacy = privacy
        self.net = net
        self.known = round_.shared | job.personal
        """What the server knows; changes are relative to this."""
        self.random = privacy.random(round_, job.client)
        self.layers = [layer for layer in batch_norms(net) if not kept.intersection(layer.statistics)]
        self.names = {name for layer in self.layers for name in layer.statistics}

    def steps(self, batches: Iterable[Batch]) -> Iterable[Batch]:
        """The batches; with noise at every step, each batch's change of the statistics is clipped and gets noise."""
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
        """The upload in the form that may leave the client."""
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
    """The change of statistics: of the mean in known standard deviations, of the log of the variance; in float64."""
    moved: Tensors = {}
    for layer in layers:
        before, after = _variance(known, layer), _variance(now, layer)
        moved[layer.mean] = (now[layer.mean].double() - known[layer.mean].double()) / before.sqrt()
        moved[layer.variance] = (after / before).log()
    return moved


def from_coordinates(known: Tensors, moved: Tensors, layers: Sequence[BNNames]) -> Tensors:
    """The inverse of `coordinates`: the statistics after this change, clipped where noise made them absurd."""
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
    """Central privacy of θ: the mean of updates clipped to norm C, plus N(0, (z · 2 C / n)²) in every coordinate.

    All n clients have equal weight, so that one client's share is known. A tensor that only some send is averaged among
    those; n is then the smallest number of senders of any tensor. Uploads are added as they arrive, so memory is one
    model. The server sees every update without noise: this protects against those who see only the result.
    """

    mechanism: Mechanism
    seed: int | None
    """None uses the operating system's randomness."""

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
        """This round's generator, derived from the weights: aggregation does not know the round's number."""
        if self.seed is None:
            return torch.Generator().manual_seed(secrets.randbits(63))
        digest = hashlib.blake2b(digest_size=16)
        for name in sorted(shared):
            digest.update(shared[name].contiguous().numpy().tobytes())
        return randomness.generator(self.seed, "private mean", digest.hexdigest())
