"""Aggregation rules that a minority of malicious clients cannot control; each rule is an `Aggregate`.

    rule              withstands                  memory beyond the result       passes over the uploads
    NormBound         influence ≤ bound per client  one model (bound given), else spooled       1 (2)
    CoordinateMedian  < half of the weight          one chunk                                  1
    TrimmedMean       f per coordinate              one chunk                                  1
    Krum, MultiKrum   f, if n ≥ 2 f + 3             one chunk, n × n distances, two models     2
    GeometricMedian   < half of the weight          one chunk, n × n distances, two models     2

Uploads are written to disk (`spool`) and read back in chunks, so memory does not grow with clients × weights. A tensor
that only some clients send (BN_a, which ST users do not have) is aggregated among those clients: Krum and the geometric
median treat each group of names with the same senders as a separate model. A name that nobody sent keeps its value.

Weights are the numbers of samples that clients report. A reported number counts for at most twice the median, because
a client can lie. So if honest weights are equal, fewer than a third of the clients can never reach half of the weight.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import TypeAlias

import torch
from torch import Tensor

from fedrbn.errors import ConfigError
from fedrbn.federated.aggregation.mean import Contribution, mean
from fedrbn.federated.aggregation.order_statistics import trimmed_mean, weighted_median
from fedrbn.federated.aggregation.spool import Group, Spool, spooled
from fedrbn.types import Tensors

HEAVIEST = 2.0
"""A client's reported number of samples counts for at most this many times the median."""

NOISE_FLOOR = 1e-6
"""ν of the smoothed Weiszfeld iteration: a client closer than this counts as being at the centre."""

Weigh: TypeAlias = Callable[[Spool, Group], list[float]]
"""The weight of each sender of a group."""


def count(malicious: float, clients: int) -> int:
    """f: how many malicious clients a rule tolerates; a value below 1 is a share of the clients, rounded up."""
    return math.ceil(malicious * clients - 1e-9) if malicious < 1 else round(malicious)


def bounded(weights: Sequence[float]) -> list[float]:
    """Reported weights, each limited to twice their median."""
    most = HEAVIEST * median(weights) if weights else 0.0
    return [min(weight, most) for weight in weights]


@dataclass(frozen=True)
class CoordinateMedian:
    """Each coordinate's weighted median over clients. Memory: one chunk of all clients, and the result."""

    def __call__(self, shared: Tensors, contributions: Iterable[Contribution]) -> Tensors:
        """See `Aggregate`."""
        with spooled(contributions) as spool:
            return shared | {name: self._of(spool, name, shared[name]) for name in spool.sizes}

    def _of(self, spool: Spool, name: str, like: Tensor) -> Tensor:
        weights = torch.tensor(bounded([spool.waiting[i].weight for i in spool.senders[name]]), dtype=torch.float64)
        return _filled(like, ((where, weighted_median(rows, weights)) for where, rows in spool.parts(name)))


@dataclass(frozen=True)
class TrimmedMean:
    """Each coordinate's weighted mean without the f smallest and the f largest values (Yin et al. 2018).

    Memory: one chunk of all clients, and the result.
    """

    malicious: float = 0.2
    """f: a number of clients, or, if below 1, a share of those that sent the tensor."""

    def __post_init__(self) -> None:
        _check_malicious(self.malicious)

    def check(self, clients: int) -> None:
        """Raise an error if there are too few clients to trim from."""
        f = count(self.malicious, clients)
        if clients <= 2 * f:
            raise _too_few("trimmed-mean", clients, f, 2 * f + 1)

    def __call__(self, shared: Tensors, contributions: Iterable[Contribution]) -> Tensors:
        """See `Aggregate`."""
        with spooled(contributions) as spool:
            return shared | {name: self._of(spool, name, shared[name]) for name in spool.sizes}

    def _of(self, spool: Spool, name: str, like: Tensor) -> Tensor:
        senders = spool.senders[name]
        self.check(len(senders))
        f = count(self.malicious, len(senders))
        weights = torch.tensor(bounded([spool.waiting[i].weight for i in senders]), dtype=torch.float64)
        return _filled(like, ((where, trimmed_mean(rows, weights, f)) for where, rows in spool.parts(name)))


@dataclass(frozen=True)
class Krum:
    """The upload with the smallest sum of squared distances to its n − f − 2 nearest (Blanchard et al. 2017).

    With `keep` m > 1 it is multi-Krum: the weighted mean of the m lowest-scoring uploads. Scores do not use weights.
    Memory: one chunk of all clients, n × n distances, and two models.
    """

    malicious: float = 0.2
    """f: a number of clients, or, if below 1, a share of them."""
    keep: int | None = 1
    """m, the number of uploads to average; None keeps all but f."""

    def __post_init__(self) -> None:
        _check_malicious(self.malicious)
        if self.keep is not None and self.keep < 1:
            raise ConfigError(f"got train.keep = {self.keep}; expected at least 1 upload to keep.")

    def check(self, clients: int) -> None:
        """Raise an error if there are too few clients for the scores to be meaningful."""
        f = count(self.malicious, clients)
        if clients < 2 * f + 3:
            raise _too_few("krum", clients, f, 2 * f + 3)
        if self.keep is not None and self.keep > clients - f:
            raise ConfigError(
                f"got train.keep = {self.keep} with {clients} clients of which {f} may be malicious; expected at most "
                f"{clients - f}. Lower train.keep, or leave it out to keep all but f."
            )

    def __call__(self, shared: Tensors, contributions: Iterable[Contribution]) -> Tensors:
        """See `Aggregate`."""
        with spooled(contributions) as spool:
            return _by_group(shared, spool, self._weights)

    def _weights(self, spool: Spool, group: Group) -> list[float]:
        clients = len(group.senders)
        self.check(clients)
        f = count(self.malicious, clients)
        order = scores(squared_distances(spool, group), f).argsort(stable=True).tolist()
        kept = set(order[: self.keep or clients - f])
        claimed = bounded([spool.waiting[i].weight for i in group.senders])
        return [weight if i in kept else 0.0 for i, weight in enumerate(claimed)]


def scores(distances: Tensor, f: int) -> Tensor:
    """Krum's score of each client: the sum of its n − f − 2 smallest squared distances to others."""
    others = distances.clone().fill_diagonal_(math.inf)
    return others.sort(dim=1).values[:, : len(distances) - f - 2].sum(dim=1)


@dataclass(frozen=True)
class GeometricMedian:
    """RFA (Pillutla et al. 2022): the point with the smallest weighted sum of distances to the uploads.

    Smoothed Weiszfeld iterations, v ← Σ β_k θ_k / Σ β_k with β_k = a_k / max(ν, ‖v − θ_k‖), start from the mean. v is
    always a weighted mean of the uploads, so the iterations need only the distances between uploads: the uploads are
    read twice for any number of iterations. Memory: one chunk of all clients, n × n distances, and two models.
    """

    iterations: int = 1000
    tolerance: float = 1e-10
    """Iterations stop when no upload's share of the mean changes by more than this."""

    def __call__(self, shared: Tensors, contributions: Iterable[Contribution]) -> Tensors:
        """See `Aggregate`."""
        with spooled(contributions) as spool:
            return _by_group(shared, spool, self._weights)

    def _weights(self, spool: Spool, group: Group) -> list[float]:
        claimed = torch.tensor(bounded([spool.waiting[i].weight for i in group.senders]), dtype=torch.float64)
        distances = squared_distances(spool, group)
        mix = claimed / claimed.sum()
        for _ in range(self.iterations):
            pull = claimed / _from_mix(distances, mix).clamp(min=NOISE_FLOOR)
            mix, before = pull / pull.sum(), mix
            if (mix - before).abs().max() <= self.tolerance:
                break
        weights: list[float] = mix.tolist()
        return weights


def _from_mix(distances: Tensor, mix: Tensor) -> Tensor:
    """‖Σ_k c_k θ_k − θ_j‖ for each j, from squared distances D and Σ c = 1: (D c)_j − ½ cᵀ D c, under the root."""
    to_all = distances @ mix
    return (to_all - mix @ to_all / 2).clamp(min=0).sqrt()


@dataclass(frozen=True)
class NormBound:
    """The weighted mean of updates whose norm is clipped to a bound: θ_t + mean of Δ_k · min(1, bound / ‖Δ_k‖).

    One client moves the result by at most bound · its share of the weight. If a bound is given, uploads are added as
    they arrive and memory is one model. Without one, the bound is the median of this round's norms, and uploads stay on
    disk until it is known.
    """

    bound: float | None = None

    def __post_init__(self) -> None:
        if self.bound is not None and not self.bound > 0:
            raise ConfigError(f"got train.bound = {self.bound}; expected a norm above 0, or None for the median.")

    def __call__(self, shared: Tensors, contributions: Iterable[Contribution]) -> Tensors:
        """See `Aggregate`."""
        if self.bound is not None:
            return mean(shared, (cut(shared, contribution, self.bound) for contribution in contributions))
        with spooled(contributions) as spool:
            everybody = range(len(spool.waiting))
            if not everybody:
                return shared
            bound = median(length(shared, contribution) for contribution in spool.contributions(everybody))
            weights = bounded([contribution.weight for contribution in spool.waiting])
            return mean(
                shared,
                (
                    replace(cut(shared, contribution, bound), weight=weight)
                    for contribution, weight in zip(spool.contributions(everybody), weights, strict=True)
                ),
            )


def length(shared: Tensors, contribution: Contribution) -> float:
    """‖θ_k − θ_t‖ over all tensors that the client sent."""
    return math.hypot(
        *((tensor - shared[name]).double().norm().item() for name, tensor in contribution.tensors.items())
    )


def cut(shared: Tensors, contribution: Contribution, bound: float) -> Contribution:
    """The contribution with its update scaled down to this norm, if it is longer."""
    own = length(shared, contribution)
    if own <= bound:
        return contribution
    near = {name: shared[name].lerp(tensor, bound / own) for name, tensor in contribution.tensors.items()}
    return replace(contribution, tensors=near)


def squared_distances(spool: Spool, group: Group) -> Tensor:
    """‖θ_i − θ_j‖² over the names of a group, clients × clients, summed chunk by chunk."""
    clients = len(group.senders)
    total = torch.zeros(clients, clients, dtype=torch.float64)
    for name in group.names:
        for _, rows in spool.parts(name):
            # Not via scalar products: far uploads would cost the distances of near ones their precision.
            total += torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist").square()
    return total


def _by_group(shared: Tensors, spool: Spool, weigh: Weigh) -> Tensors:
    """For each group of names, the mean of its senders with the weights from the rule; weight 0 excludes a sender."""
    result = dict(shared)
    for group in spool.groups():
        weights = weigh(spool, group)
        chosen = [(client, weight) for client, weight in zip(group.senders, weights, strict=True) if weight > 0]
        again = spool.contributions([client for client, _ in chosen])
        mixed = mean(
            {name: shared[name] for name in group.names},
            (
                replace(sent, tensors={name: sent.tensors[name] for name in group.names}, weight=weight)
                for sent, (_, weight) in zip(again, chosen, strict=True)
            ),
        )
        result |= mixed
    return result


def _filled(like: Tensor, parts: Iterable[tuple[slice, Tensor]]) -> Tensor:
    flat = torch.empty(like.numel(), dtype=like.dtype)
    for where, values in parts:
        flat[where] = values.to(like.dtype)
    return flat.reshape(like.shape)


def _check_malicious(malicious: float) -> None:
    if malicious < 0 or (malicious >= 1 and malicious != round(malicious)):
        raise ConfigError(
            f"got train.malicious = {malicious}; expected a share of the clients from 0 to below 0.5, or a whole "
            "number of them."
        )


def _too_few(rule: str, clients: int, f: int, needed: int) -> ConfigError:
    return ConfigError(
        f"got {clients} clients for aggregation {rule!r} that must tolerate {f} malicious ones; expected at least "
        f"{needed}. Sample more clients per round (federation.participants), lower train.malicious, or choose "
        "train.aggregation = 'median', 'geometric-median' or 'norm-bound'."
    )
