"""The cost column T of the paper's benchmark and the total of Free AT, recomputed from the data sizes behind them."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass

from fedrbn.config import AtUsers, make
from fedrbn.cost.count import actual_macs_of, duties, padded, paper_forward_macs, paper_macs, per_epoch, without_images
from fedrbn.cost.units import PLAIN, units
from fedrbn.federated.assemble import Assembly
from fedrbn.types import Duty, Role

ONE_DOMAIN = {"digits": "mnist", "domainnet": "real"}
"""The data sets of the benchmark, and the domain of the AT users in the setting where only one domain has any."""
LAMBDAS = (0.0, 0.5, 1.0)


@dataclass(frozen=True)
class BenchmarkCost:
    """A setting of the benchmark; λ does not matter where all users are AT users."""

    data: str
    at: str
    lam: float | None
    macs_per_epoch: dict[str, int]
    """The counts `paper` and `actual`."""


def benchmark() -> Iterator[BenchmarkCost]:
    """FedRBN in every setting of the benchmark table at the paper's size; λ = 0 is also the cost of the baselines."""
    for data, domain in ONE_DOMAIN.items():
        actual: dict[tuple[Duty, float], int] = {}
        choices: dict[str, AtUsers] = {"all": 1.0, "20 %": 0.2, domain: (domain,)}
        for at, users in choices.items():
            for lam in LAMBDAS[: 1 if at == "all" else None]:
                assembly = setting(data, users, lam)
                prices = {duty: (duty, lam if duty.role is Role.ST else 0.0) for duty in duties(assembly.plan)}
                for duty, key in prices.items():
                    if key not in actual:  # on AlexNet a trial takes seconds, and AT users do not depend on λ
                        net, shape = copy.deepcopy(assembly.net), assembly.federation.image_shape
                        actual[key] = actual_macs_of(net, assembly.plan, duty, shape)
                spent = per_epoch(
                    assembly.plan, paper_macs(assembly), {duty: actual[key] for duty, key in prices.items()}
                )
                yield BenchmarkCost(data, at, None if at == "all" else lam, spent)


def setting(data: str, at: AtUsers, lam: float) -> Assembly:
    """FedRBN at the paper's size, without images."""
    values = {"data": {"name": data}, "federation": {"at": at}, "method": {"lam": lam}}
    return without_images(make(values), scale="paper")


def free_at_total() -> int:
    """MACs of all 300 epochs of Free AT by all users of Digits, in the paper's count.

    A replay of a batch gets the gradients of the weights and of the noise from one backward pass, so it costs as much
    as standard training; the m replays of every batch and the division of the epochs by m cancel out.
    """
    assembly = setting("digits", 1.0, 0.0)
    images = sum(padded(assembly.plan, member) for member in assembly.plan.members)
    forward = paper_forward_macs(assembly.net, assembly.federation.image_shape)
    return assembly.plan.train.rounds * images * round(units(PLAIN, 0)) * forward
