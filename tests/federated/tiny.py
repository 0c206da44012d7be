"""A network, clients and a plan small enough to recompute by hand."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from fedrbn.config import TrainConfig
from fedrbn.data.samples import Client, Samples
from fedrbn.federated.aggregation.layout import layout
from fedrbn.federated.executors.host import ClientHost
from fedrbn.federated.methods import Method
from fedrbn.federated.server import Plan
from fedrbn.nets.dual_bn import DualNet
from fedrbn.types import Member, Role

PIXELS, HIDDEN, CLASSES = 4, 3, 2


def network(seed: int = 0, *, dropout: bool = False) -> nn.Sequential:
    """Linear, batch norm, ReLU, linear, with seeded weights; the affine is not the identity and keeps ReLUs alive."""
    random = torch.Generator().manual_seed(seed)
    net = nn.Sequential(
        nn.Flatten(),
        nn.Linear(PIXELS, HIDDEN),
        nn.BatchNorm1d(HIDDEN),
        nn.ReLU(),
        *([nn.Dropout(0.5)] if dropout else []),
        nn.Linear(HIDDEN, CLASSES),
    )
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=random))
        net[2].weight.copy_(torch.tensor([1.3, 0.7, -0.9]))
        net[2].bias.copy_(torch.tensor([0.8, 0.5, 1.1]))
    return net


def samples(count: int, seed: int) -> Samples:
    """Random images of 1 x 2 x 2 pixels whose class is whether they are bright."""
    random = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (count, 1, 2, 2), generator=random, dtype=torch.uint8)
    return Samples(images, (images.float().mean((1, 2, 3)) > 127).long())


def client(name: str, role: Role, count: int, seed: int) -> Client:
    return Client(name, "d", role, samples(count, seed), samples(6, seed + 100), samples(7, seed + 200))


def clients(*roles_and_counts: tuple[Role, int]) -> dict[str, Client]:
    """Clients "c0", "c1", … with these roles and numbers of training images."""
    return {f"c{i}": client(f"c{i}", role, count, i) for i, (role, count) in enumerate(roles_and_counts)}


def site(method: Method, members: dict[str, Client], seed: int = 0) -> ClientHost:
    return ClientHost(members, method.network(network(seed)))


def plan(
    method: Method,
    net: DualNet,
    members: Sequence[Client],
    *,
    rounds: int = 2,
    seed: int = 1,
    participants: int | None = None,
    batch_size: int = 32,
) -> Plan:
    return Plan(
        members=tuple(Member(c.id, c.domain, c.role.duty, len(c.train)) for c in members),
        method=method,
        names=layout(net, method.local),
        train=TrainConfig(rounds=rounds, batch_size=batch_size, lr=0.1),
        seed=seed,
        participants=participants,
    )
