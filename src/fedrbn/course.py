"""What the server needs to run an experiment, whether the clients' data are at hand or on other machines."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from fedrbn.attacks import Attack, LogitsAttack
from fedrbn.config import Experiment
from fedrbn.data.samples import Samples
from fedrbn.federated.server import Plan
from fedrbn.nets.dual_bn import DualNet
from fedrbn.types import ServerState


@dataclass(frozen=True)
class Outline:
    """What the server knows of the data of a federation: names and shapes, never an image."""

    classes: tuple[str, ...]
    image_shape: tuple[int, int, int]
    labels: dict[str, str]
    """How tables name each domain."""
    validation: bool
    """Whether any client has images to validate on."""


class Course(Protocol):
    """An experiment with everything built that the server works with. It holds no data."""

    @property
    def experiment(self) -> Experiment:
        """The resolved experiment."""

    @property
    def attack(self) -> Attack:
        """The attack of the config."""

    @property
    def adversary(self) -> LogitsAttack:
        """The attack of the config, as evaluation calls it."""

    @property
    def net(self) -> DualNet:
        """The network's structure and its initial weights."""

    @property
    def plan(self) -> Plan:
        """With whom, by which method, for how many rounds."""

    @property
    def outline(self) -> Outline:
        """What the server knows of the data."""

    @property
    def forgiving(self) -> bool:
        """Whether a client that cannot be evaluated is noted and left out, as where clients come and go; else it is an
        error."""

    def remarks(self, state: ServerState) -> dict[str, Any]:
        """What records say besides of the state after a round, as JSON values."""

    def samples_digest(self) -> str:
        """Twelve hex digits that name the test samples of all clients and their order."""


def digest_of(samples: Samples) -> str:
    """Sixty-four hex digits that name these samples and their order; the samples cannot be found from them."""
    hasher = hashlib.sha256()
    hasher.update(samples.images.numpy().tobytes())
    hasher.update(samples.labels.numpy().tobytes())
    return hasher.hexdigest()


def digest_of_all(clients: Iterable[tuple[str, str]]) -> str:
    """Twelve hex digits from every client's id and digest: what a client says is enough to compare test samples."""
    hasher = hashlib.sha256()
    for client, digest in clients:
        hasher.update(f"{client} {digest}\n".encode())
    return hasher.hexdigest()[:12]
