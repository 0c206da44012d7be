"""Whole rounds of the package, with its fast network, equal the plain loop of benchmarks/reference.py.

Random small networks, users of odd sizes, batches that do not divide them: the last batch is smaller, or one sample
larger because batch norm cannot train on a single one.
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fedrbn import PGD
from fedrbn.config import TrainConfig
from fedrbn.data.samples import Client, Samples
from fedrbn.federated.aggregation.layout import layout
from fedrbn.federated.client import batches, steps_per_epoch
from fedrbn.federated.executors.host import ClientHost
from fedrbn.federated.executors.serial import serial
from fedrbn.federated.methods import METHODS, FineTuning, Method, fedrbn, fedrbn_noprop
from fedrbn.federated.objectives import Calibrated
from fedrbn.federated.protocol import ServerState
from fedrbn.federated.server import Plan, federate, initial_state
from fedrbn.nets.dual_bn import DualNet
from fedrbn.nets.fast import fast
from fedrbn.nets.state import batch_norms
from fedrbn.randomness import generator
from fedrbn.types import Member, Role

SEED, LR = 5, 0.05
CLOSE = {"rtol": 2e-3, "atol": 2e-4}
"""Two rounds in float32; a gradient of almost 0 may have another sign, which moves a pixel by 2/255."""


def _reference() -> ModuleType:
    path = Path(__file__).parents[2] / "benchmarks" / "reference.py"
    spec = importlib.util.spec_from_file_location("reference", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["reference"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


reference = _reference()


def network(channels: int, filters: int, hidden: int, pool: bool, seed: int) -> Callable[[], nn.Sequential]:
    """Convolution and linear layers with batch norm over 6x6 images, always with the same weights."""
    side = 3 if pool else 6

    def build() -> nn.Sequential:
        net = nn.Sequential(
            nn.Conv2d(channels, filters, 3, padding=1),
            nn.BatchNorm2d(filters),
            nn.ReLU(),
            nn.MaxPool2d(2) if pool else nn.Identity(),
            nn.Flatten(),
            nn.Linear(filters * side**2, hidden),
            nn.BatchNorm1d(hidden),
            nn.ReLU(),
            nn.Linear(hidden, 3),
        )
        random = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in net.parameters():
                if parameter.ndim > 1:
                    parameter.copy_(torch.randn(parameter.shape, generator=random) / parameter[0].numel() ** 0.5)
                else:
                    parameter.copy_(0.5 + torch.rand(parameter.shape, generator=random))
        return net

    return build


def client(number: int, role: Role, count: int, channels: int) -> Client:
    random = torch.Generator().manual_seed(number)
    images = torch.randint(0, 256, (count, channels, 6, 6), generator=random, dtype=torch.uint8)
    samples = Samples(images, torch.randint(0, 3, (count,), generator=random))
    return Client(f"c{number}", "d", role, samples, samples, samples)


def state_after(
    build: Callable[[], nn.Sequential],
    clients: list[Client],
    method: Method,
    size: int,
    kernels: Callable[[DualNet], DualNet],
) -> ServerState:
    """Two rounds by the package, trained in a network with these kernels."""
    net = method.network(build())
    plan = Plan(
        members=tuple(Member(c.id, c.domain, c.role.duty, len(c.train)) for c in clients),
        method=method,
        names=layout(net, method.local),
        train=TrainConfig(rounds=2, batch_size=size, lr=LR),
        seed=SEED,
    )
    with tempfile.TemporaryDirectory() as store:  # for methods whose clients remember something
        site = ClientHost({c.id: c for c in clients}, kernels(net), Path(store))
        *_, (state, _) = federate(initial_state(net, plan), plan, serial(site))
    return state


def by_package(build: Callable[[], nn.Sequential], clients: list[Client], method: Method, size: int) -> list[Tensor]:
    """θ, then each client's statistics, BN_c before BN_a."""
    state = state_after(build, clients, method, size, fast)
    layers = sorted(batch_norms(method.network(build())), key=lambda names: names.branch.value)
    statistics = [state.personal[c.id][name] for c in clients for layer in layers for name in layer.statistics]
    return [*(state.shared[name] for name in sorted(state.shared)), *statistics]


def by_reference(
    build: Callable[[], nn.Sequential], clients: list[Client], lam: float | None, size: int
) -> list[Tensor]:
    """The same numbers by the plain loop, which is given the same order of samples and the same noise."""
    nets = reference.Reference(build(), build(), lr=LR)
    users = []
    for c in clients:
        x, y = c.train.pixels(slice(None))
        own = reference.norm_state(nets.clean)
        users.append(reference.User(c.role is Role.AT, x, y, own, dict(own)))
    theta = reference.weights(nets.clean)
    for number in range(2):

        def random(i: int, purpose: str, number: int = number) -> torch.Generator:
            return generator(SEED, "round", number, "client", clients[i].id, purpose)

        def order(i: int) -> list[Tensor]:
            count = len(clients[i].train)
            return list(batches(count, size, steps_per_epoch(count, size), random(i, "batches")))

        theta = reference.whole_round(
            nets, theta, users, order, lambda i: random(i, "objective"), lam if number else None
        )
    statistics = [
        own[name]
        for user in users
        for own in (user.clean, user.noised)
        for name in own
        if name.endswith(("running_mean", "running_var"))
    ]
    return [*(theta[name] for name in sorted(theta)), *statistics]


def nudged(build: Callable[[], nn.Sequential], seed: int) -> Callable[[], nn.Sequential]:
    """The same network with weights that are a rounding error off: by the factor 1 + 4 · 2⁻²³ · N(0, 1)."""

    def build_off() -> nn.Sequential:
        net, random = build(), torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.mul_(1 + 4 * 2**-23 * torch.randn(parameter.shape, generator=random))
        return net

    return build_off


def steady(expected: list[Tensor], off: list[Tensor]) -> bool:
    """Whether rounding errors stay within a quarter of what may differ, in the plain loop alone.

    Batch norm of two images gives ±1 whatever they are, divided by their difference in the gradient: for some images
    the loop blows up its own rounding errors, and nothing can be compared with it.
    """
    bounds = {name: value / 4 for name, value in CLOSE.items()}
    return all(torch.allclose(one, other, **bounds) for one, other in zip(expected, off, strict=True))


SIZES = st.lists(st.integers(2, 9), min_size=2, max_size=3)


@settings(max_examples=15, deadline=None, derandomize=True, database=None)
@given(
    channels=st.integers(1, 3),
    filters=st.integers(1, 4),
    hidden=st.integers(2, 6),
    pool=st.booleans(),
    sizes=SIZES,
    size=st.integers(2, 5),
    lam=st.sampled_from([0.25, 0.5, 0.75]),
    seed=st.integers(0, 100),
)
def test_two_rounds_of_fedrbn(
    channels: int, filters: int, hidden: int, pool: bool, sizes: list[int], size: int, lam: float, seed: int
) -> None:
    """The first user trains adversarially; before it has reported nobody calibrates."""
    clients = [client(i, Role.ST if i else Role.AT, count, channels) for i, count in enumerate(sizes)]
    build = network(channels, filters, hidden, pool, seed)
    expected = by_reference(build, clients, lam, size)
    assume(all(steady(expected, by_reference(nudged(build, i), clients, lam, size)) for i in range(2)))
    found = by_package(build, clients, replace(fedrbn(PGD()), calibration=Calibrated(lam)), size)
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, **CLOSE)


@pytest.mark.parametrize("size", [4, 5])
def test_two_rounds_without_calibration_differ_from_those_with_it(size: int) -> None:
    """A check of the check: λ makes a difference that the comparison sees."""
    clients = [client(0, Role.AT, 9, 3), client(1, Role.ST, 9, 3)]
    build = network(3, 4, 6, pool=True, seed=1)
    without = by_package(build, clients, fedrbn_noprop(PGD()), size)
    with_it = by_package(build, clients, replace(fedrbn(PGD()), calibration=Calibrated(0.5)), size)
    assert not torch.allclose(without[2], with_it[2], **CLOSE)
    expected = by_reference(build, clients, None, size)
    shared = len(reference.weights(build()))
    for ours, theirs in zip(without[:shared], expected[:shared], strict=True):
        torch.testing.assert_close(ours, theirs, **CLOSE)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("sizes", [(7, 6), (9, 5)], ids=["even", "odd last batch"])
def test_every_method_gives_the_same_with_and_without_fast_kernels(name: str, sizes: tuple[int, int]) -> None:
    clients = [client(0, Role.AT, sizes[0], 3), client(1, Role.ST, sizes[1], 3)]
    build, method = network(3, 4, 6, pool=True, seed=1), METHODS[name](PGD(steps=2))
    if method.fine_tuning is not None:
        method = replace(method, fine_tuning=FineTuning(iterations=4))  # rounding errors grow over hundreds of steps
    quick, plain = (state_after(build, clients, method, 4, kernels) for kernels in (fast, lambda net: net))
    trained = (quick.shared | quick.personal["c1"])["network.8.weight"]
    assert not torch.equal(trained, build()[8].weight)
    for ours, theirs in ((quick.shared, plain.shared), (quick.personal, plain.personal)):
        torch.testing.assert_close(ours, theirs, **CLOSE)
