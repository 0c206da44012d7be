"""The (ε, δ) that a run has spent, computed by the Rényi accountant of opacus."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from fedrbn.config import Experiment
from fedrbn.errors import ConfigError
from fedrbn.federated.client import steps_per_epoch
from fedrbn.federated.server import Plan
from fedrbn.types import Member

ORDERS = [1 + 10 ** (exponent / 10) for exponent in range(-50, 31)]
"""Orders α of the Rényi divergence: 1.00001 to 1001, a range for very little and very much noise."""


@dataclass(frozen=True)
class Spending:
    """The number of releases of each kind by a client, and their noise multipliers."""

    releases: tuple[tuple[str, float, int], ...]
    """(what, noise multiplier, how often)."""
    delta: float

    @property
    def epsilon(self) -> float:
        """ε of all releases together, for one client and `delta`."""
        return epsilon([(noise, times) for _, noise, times in self.releases], self.delta)

    def record(self) -> dict[str, Any]:
        """For the records of a run."""
        return {
            "unit": "all data of one client",
            "epsilon": self.epsilon,
            "delta": self.delta,
            "accountant": "opacus RDP",
            "releases": [
                {"what": what, "noise_multiplier": noise, "times": times} for what, noise, times in self.releases
            ],
        }

    def __str__(self) -> str:
        kinds = ", ".join(f"{times} × {what} at noise multiplier {noise:g}" for what, noise, times in self.releases)
        return f"({self.epsilon:.4g}, {self.delta:g})-differential privacy of a client ({kinds})"


def epsilon(releases: list[tuple[float, int]], delta: float) -> float:
    """ε of Gaussian releases, given as (noise multiplier, count); amplification by sampling is not used."""
    try:
        from opacus.accountants import RDPAccountant  # type: ignore[import-untyped]  # noqa: PLC0415
    except ImportError:
        raise ConfigError(
            "got settings in [privacy] without opacus, which computes their ε; expected it to be installed: "
            "pip install 'fedrbn[privacy]'."
        ) from None
    accountant = RDPAccountant()
    for noise, times in releases:
        for _ in range(times):
            accountant.step(noise_multiplier=noise, sample_rate=1.0)
    with warnings.catch_warnings():  # an optimum at the last order gives an ε that is valid but not the tightest
        warnings.simplefilter("ignore", UserWarning)
        return float(accountant.get_epsilon(delta, alphas=ORDERS))


def releases_again(experiment: Experiment) -> bool:
    """Whether a client that is asked twice in a round releases twice. Noise from the seed is the same both times."""
    chosen = experiment.privacy
    return bool(chosen.secret) and (chosen.statistics_noise is not None or chosen.update_noise is not None)


def spending(
    experiment: Experiment, plan: Plan, finished: int, repeated: Mapping[int, int] = MappingProxyType({})
) -> Spending | None:
    """The spending of the client that took part most often in the first `finished` rounds; None without privacy.

    `repeated` says how many more times clients were asked in a round, counted from 0. Each time counts in full: it is
    unknown which answers had left before the round was stopped.
    """
    chosen = experiment.privacy
    if chosen.statistics_noise is None and chosen.update_noise is None:
        return None
    taken: Counter[str] = Counter()
    steps: Counter[str] = Counter()
    for number in range(finished):
        for member in plan.schedule.sample(number):
            times = 1 + repeated.get(number, 0)
            taken[member.id] += times
            steps[member.id] += times * _steps(plan, member, number)
    rounds, most = max(taken.values(), default=0), max(steps.values(), default=0)
    releases: list[tuple[str, float, int]] = []
    if chosen.statistics_noise is not None:
        often = rounds + (most if chosen.statistics_when == "step" else 0)
        releases.append(("statistics", chosen.statistics_noise, often))
    if chosen.update_noise is not None:
        where = "at the server" if chosen.update_at == "server" else "at the client"
        releases.append((f"update, noise {where}", chosen.update_noise, rounds))
    return Spending(tuple(releases), chosen.delta or 1e-5)


def privacy_record(
    experiment: Experiment, plan: Plan, repeated: Mapping[int, int] = MappingProxyType({})
) -> dict[str, Any]:
    """The part of the record about privacy: a client's spending after all rounds; empty without privacy."""
    planned = spending(experiment, plan, plan.schedule.rounds, repeated)
    return {} if planned is None else {"privacy": planned.record()}


def _steps(plan: Plan, member: Member, number: int) -> int:
    """Local steps of a client in a round."""
    return plan.schedule.steps(number) or plan.train.local_epochs * steps_per_epoch(
        member.samples, plan.train.batch_size
    )
