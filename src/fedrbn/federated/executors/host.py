"""How one client's job runs, in any process or on any machine. If the client fails, the result is a Failure."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import torch

from fedrbn.config.plugins import location
from fedrbn.data.samples import Client, Samples
from fedrbn.federated.client import adapt, local_update
from fedrbn.federated.privacy.mechanism import Privacy
from fedrbn.federated.protocol import Answers, Evaluate, Failure, Job, Network, Result, Round, Train
from fedrbn.federated.uploads.validation import worst_layer
from fedrbn.nets.dual_bn import DualNet
from fedrbn.nets.state import load
from fedrbn.randomness import derive, generator
from fedrbn.types import Tensors


@dataclass(frozen=True)
class ClientHost:
    """What is needed to run clients: their data and a network to work in, whose weights each job overwrites."""

    clients: dict[str, Client]
    net: DualNet
    store: Path | None = None
    """Where clients keep what a method has to remember from round to round; see `federated.training.memory`."""
    privacy: Privacy = field(default_factory=Privacy)
    """What clients apply to their uploads before sending them."""


def perform(host: ClientHost, round_: Round, job: Job) -> Result:
    """Run one client's job. The network's own randomness (dropout) is seeded too, and the global state is restored."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(network_seed(round_, job))
        try:
            if isinstance(job, Train):
                return local_update(host.net, host.clients[job.client], round_, job, host.store, host.privacy)
            return _evaluate(host, round_, job)
        except Exception as error:  # the server decides about any error at a client, even a bug in a plug-in
            return failure(host, round_, job, error)


def failure(host: ClientHost, round_: Round, job: Job, error: Exception) -> Failure:
    """What the server is told about an error."""
    where = f" {worst_layer(host.net)}" if isinstance(error, FloatingPointError) else location(error)
    return Failure(job.client, round_.number, f"{type(error).__name__}: {error}{where}")


def network_seed(round_: Round, job: Job) -> int:
    """The seed for a client's network in a round."""
    return derive(round_.seed, "round", round_.number, "client", job.client, "network")


def _evaluate(host: ClientHost, round_: Round, job: Evaluate) -> Answers:
    net, client = host.net.eval(), host.clients[job.client]
    load(net, round_.shared)
    load(net, job.personal)
    adapt(net, client, round_)
    return answers(net, client, round_, job)


def answers(net: Network, client: Client, round_: Round, job: Evaluate) -> Answers:
    """The answers of a client's network to the questions of a job."""
    samples = samples_of(client, job)
    correct: Tensors = {}
    for question in job.questions:
        correct |= question(net, samples, generator(round_.seed, "evaluate", job.part, job.client, str(question)))
    return Answers(job.client, round_.number, correct)


def samples_of(client: Client, job: Evaluate) -> Samples:
    """The samples that an evaluation is about."""
    return (client.validation if job.part == "validation" else client.test).first(job.limit)
