"""What the server needs of an experiment, wherever its clients are: in this program (`assemble`) or on Flower nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch

from fedrbn.attacks import Attack, LogitsAttack
from fedrbn.config import Experiment
from fedrbn.federated.protocol import ServerState
from fedrbn.federated.server import Plan
from fedrbn.nets.dual_bn import DualNet


@dataclass(frozen=True)
class Outline:
    """What the server knows about the data of a federation: names and shapes, never an image."""

    classes: tuple[str, ...]
    image_shape: tuple[int, int, int]
    labels: dict[str, str]
    """How tables name each domain."""
    validation: bool
    """Whether any client has validation images."""


class PreparedExperiment(Protocol):
    """An experiment with everything that the server needs. It holds no data."""

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
        """The network with its initial weights."""

    @property
    def precision(self) -> torch.dtype | None:
        """The type that training computes in, if it is not float32."""

    @property
    def plan(self) -> Plan:
        """The clients, the method and the number of rounds."""

    @property
    def outline(self) -> Outline:
        """What the server knows of the data."""

    @property
    def forgiving(self) -> bool:
        """Whether a client that cannot be evaluated is recorded and left out, because clients come and go; otherwise it
        is an error."""

    def record_extras(self, state: ServerState) -> dict[str, Any]:
        """Further values for the record of the state after a round, as JSON."""

    def with_plan(self, plan: Plan) -> PreparedExperiment:
        """The same experiment with another plan."""

    def samples_digest(self) -> str:
        """Twelve hex digits that name the test samples of all clients and their order."""
