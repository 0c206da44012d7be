"""Algorithms 1 and 3: one client's local update."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator

import torch
from torch import Generator, Tensor

from fedrbn.data.samples import Client, Samples
from fedrbn.federated.aggregation import layout
from fedrbn.federated.objectives import Objective
from fedrbn.nets.dual_bn import DualNet, load, tensors
from fedrbn.randomness import generator
from fedrbn.types import Role, Round, Train, Upload


def local_update(net: DualNet, client: Client, round_: Round, job: Train) -> Upload:
    """Train the shared weights with the client's own batch norm on its data, for one round.

    `net` is a workspace: its weights are overwritten first. ST users leave everything on the noised branch as they
    got it, and do not upload it: BN_a belongs to AT users.
    """
    names = layout(net, round_.method.local)
    load(net, round_.shared)
    load(net, job.personal)
    kept = names.noised if job.role is Role.ST else frozenset[str]()
    for name, parameter in net.named_parameters():
        parameter.requires_grad_(name not in kept)

    steps = round_.steps or round_.local_epochs * steps_per_epoch(len(client.train), round_.batch_size)
    started = time.perf_counter()
    loss = sgd(
        net.train(),
        client.train,
        round_.method.objective(job.role, job.calibrate),
        lr=round_.lr,
        batches=batches(len(client.train), round_.batch_size, steps, _random(round_, job, "batches")),
        generator=_random(round_, job, "objective"),
        proximal=round_.method.proximal,
    )
    trained = {name: tensor.to("cpu", copy=True) for name, tensor in tensors(net).items() if name not in kept}
    return Upload(
        client=client.id,
        round=round_.number,
        shared={name: tensor for name, tensor in trained.items() if name in names.shared},
        personal={name: tensor for name, tensor in trained.items() if name in names.personal},
        samples=len(client.train),
        metrics={"loss": loss, "steps": steps, "seconds": time.perf_counter() - started},
    )


def sgd(
    net: DualNet,
    samples: Samples,
    objective: Objective,
    *,
    lr: float,
    batches: Iterator[Tensor],
    generator: Generator,
    proximal: float = 0.0,
) -> float:
    """Plain SGD over the batches; returns the mean loss. A loss that is no longer a number ends the update.

    `proximal` is FedProx's μ: the gradient μ (w − w_t) of (μ/2)‖w − w_t‖² pulls the weights to where they started.
    """
    device = next(net.parameters()).device
    trained = [p for p in net.parameters() if p.requires_grad]
    start = [p.detach().clone() for p in trained] if proximal else []
    optimizer = torch.optim.SGD(trained, lr=lr)
    losses = []
    for index in batches:
        x, y = samples.pixels(index)
        optimizer.zero_grad()
        losses.append(objective(net, x.to(device), y.to(device), generator))
        if not math.isfinite(losses[-1]):
            raise FloatingPointError(
                f"got loss {losses[-1]} at step {len(losses)}; expected a number. Training has diverged: lower "
                "train.lr, or clip the calibration gradient with method.clip=10."
            )
        with torch.no_grad():
            for parameter, origin in zip(trained, start, strict=False):
                if parameter.grad is not None:
                    parameter.grad.add_(parameter - origin, alpha=proximal)
        optimizer.step()
    return sum(losses) / len(losses)


def steps_per_epoch(count: int, size: int) -> int:
    """Batches in one pass over the data; a last batch of one sample is merged into the one before."""
    return max(1, math.ceil(count / size) - (count % size == 1))


def batches(count: int, size: int, steps: int, generator: Generator) -> Iterator[Tensor]:
    """`steps` batches of positions: shuffled passes over the data, one after another.

    Batch norm cannot train on a single sample, so a last batch of one joins the batch before it.
    """
    while steps > 0:
        order = torch.randperm(count, generator=generator)
        whole = steps_per_epoch(count, size)
        for i in range(min(whole, steps)):
            yield order[i * size :] if i == whole - 1 else order[i * size : (i + 1) * size]
        steps -= whole


def _random(round_: Round, job: Train, purpose: str) -> Generator:
    return generator(round_.seed, "round", round_.number, "client", job.client, purpose)
