"""Algorithms 1 and 3: one client's local update."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from torch import Generator, Tensor

from fedrbn.data.augment import augment
from fedrbn.data.samples import Client, Samples
from fedrbn.federated.aggregation.layout import layout
from fedrbn.federated.privacy.mechanism import Privacy, Protection
from fedrbn.federated.protocol import Round, Train, Upload
from fedrbn.federated.training.calfat import with_prior
from fedrbn.federated.training.freezing import first_layers
from fedrbn.federated.training.memory import recall, remember
from fedrbn.federated.training.sgd import Batch, LocalTask, Sgd
from fedrbn.nets.dual_bn import DualNet, frozen_layers
from fedrbn.nets.state import load, tensors
from fedrbn.randomness import generator
from fedrbn.types import Role


def local_update(
    net: DualNet,
    client: Client,
    round_: Round,
    job: Train,
    store: Path | None = None,
    privacy: Privacy = Privacy(),  # noqa: B008  (it cannot be changed)
) -> Upload:
    """Train the shared weights with the client's own batch norm on its data, for one round.

    `net` is a workspace: its weights are overwritten first. ST users neither train nor upload any parameter of BN_a:
    BN_a belongs to AT users. `store` is the folder for what the client's method remembers between rounds. `privacy` is
    applied to the upload before it leaves the client.
    """
    method = round_.method
    names = layout(net, method.local)
    load(net, round_.shared)
    load(net, job.personal)
    kept = names.noised if job.role is Role.ST else frozenset[str]()
    frozen = first_layers(net, round_.freeze)
    for name, parameter in net.named_parameters():
        parameter.requires_grad_(name not in kept | frozen.parameters)

    protection = Protection(privacy, net, round_, job, kept)
    steps = round_.steps or round_.local_epochs * steps_per_epoch(len(client.train), round_.batch_size)
    started = time.perf_counter()
    order = batches(len(client.train), round_.batch_size, steps, _random(round_, job.client, "batches"))
    with frozen_layers(frozen.batch_norms):
        memory, loss = method.training_of(job.role)(
            with_prior(net.train(), client.train.labels) if method.class_prior else net.train(),
            protection.steps(
                _augmented(client, pixels(client.train, order, _device(net)), _random(round_, job.client, "augment"))
            ),
            LocalTask(
                method.objective(job.duty, job.calibrate),
                round_.lr,
                _random(round_, job.client, "objective"),
                recall(store, client.id, round_.number),
            ),
        )
    remember(store, client.id, round_.number + 1, memory)
    trained = {
        name: tensor.to("cpu", copy=True, memory_format=torch.contiguous_format)  # whatever format the network uses
        for name, tensor in tensors(net).items()
        if name not in kept
    }
    upload = Upload(
        client=client.id,
        round=round_.number,
        shared={name: tensor for name, tensor in trained.items() if name in names.shared},
        personal={name: tensor for name, tensor in trained.items() if name in names.personal},
        samples=len(client.train),
        metrics={"loss": loss, "steps": steps, "seconds": time.perf_counter() - started},
    )
    return protection.protected(upload)


def adapt(net: DualNet, client: Client, round_: Round) -> None:
    """Adapt the network before evaluation, if the method does so: one local step on one batch of the client's data."""
    method = round_.method
    if method.adaptation is None:
        return
    kept = layout(net, method.local).noised if client.role is Role.ST else frozenset[str]()
    for name, parameter in net.named_parameters():
        parameter.requires_grad_(name not in kept)
    order = batches(len(client.train), round_.batch_size, 1, _random(round_, client.id, "adapt"))
    with torch.enable_grad():  # evaluation usually disables gradients
        Sgd()(
            with_prior(net.train(), client.train.labels) if method.class_prior else net.train(),
            pixels(client.train, order, _device(net)),
            LocalTask(
                method.objective(client.role.duty, calibrate=False),
                method.adaptation,
                _random(round_, client.id, "adapt objective"),
            ),
        )
    net.eval()


def pixels(samples: Samples, order: Iterable[Tensor], device: torch.device | None = None) -> Iterator[Batch]:
    """Batches of pixels and labels at these indices."""
    for index in order:
        x, y = samples.pixels(index)
        yield x.to(device), y.to(device)


def _augmented(client: Client, made: Iterable[Batch], random: Generator) -> Iterable[Batch]:
    return ((augment(x, random), y) for x, y in made) if client.augment else made


def _device(net: DualNet) -> torch.device:
    return next(net.parameters()).device


def steps_per_epoch(count: int, size: int) -> int:
    """Batches in one pass over the data; a last batch of one sample is merged into the previous one."""
    return max(1, math.ceil(count / size) - (count % size == 1))


def batches(count: int, size: int, steps: int, generator: Generator) -> Iterator[Tensor]:
    """`steps` batches of indices: shuffled passes over the data, one after another.

    Batch norm cannot train on a single sample, so a last batch of one sample is merged into the previous batch.
    """
    while steps > 0:
        order = torch.randperm(count, generator=generator)
        whole = steps_per_epoch(count, size)
        for i in range(min(whole, steps)):
            yield order[i * size :] if i == whole - 1 else order[i * size : (i + 1) * size]
        steps -= whole


def _random(round_: Round, client: str, purpose: str) -> Generator:
    return generator(round_.seed, "round", round_.number, "client", client, purpose)
