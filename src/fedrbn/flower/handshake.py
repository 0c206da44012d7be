"""Server and nodes agree on the version, the network and the classes before training; then the server assigns roles.

The server sends the `Setup` of an ST client. A node answers with an `Introduction`, which contains only names, shapes,
counts and a digest of its data, or with the reason why it does not take part.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from pydantic import Field, field_validator

from fedrbn.config import Experiment
from fedrbn.config.section import Section
from fedrbn.cost.units import PLAIN
from fedrbn.data import AVAILABLE
from fedrbn.data.federation import at_users
from fedrbn.data.memory_limit import available_memory
from fedrbn.federated.protocol import MOST_CAUSE, MOST_SAMPLES, ClientId, Label, RoundNumber
from fedrbn.fleet.planner import Device, Speed, Workload, plan
from fedrbn.nets import state_bytes
from fedrbn.types import Duty, Member, Role

Digest = Annotated[str, Field(pattern=r"\A[0-9a-f]{64}\z")]
_MOST_PIXELS = 2**22
"""Maximum values of one image, as for model files: 1024 x 1024 pixels with 4 channels."""
COPIES = 4
"""Minimum copies of the network on a server: its own, the shared weights, their running mean, and an upload."""
_Side = Annotated[int, Field(ge=1, le=4096)]
_Rate = Annotated[float, Field(gt=0, le=1e30)]


class Budget(Section):
    """What a node reports about its hardware: a role, a measurement, or nothing."""

    role: Role | None = None
    forward: _Rate | None = None
    """Multiply-accumulates per second, as `backward` and `attack`; see `fedrbn.fleet.planner.Speed`."""
    backward: _Rate | None = None
    attack: _Rate | None = None
    memory: _Rate | None = None
    bandwidth: _Rate | None = None

    @property
    def speed(self) -> Speed | None:
        """The measured speed, if there is one."""
        if self.forward is None or self.backward is None or self.attack is None:
            return None
        return Speed(self.forward, self.backward, self.attack)


class Introduction(Section):
    """What a node reports about itself. Every number has a bound: the server builds a network from some of them."""

    kind: Literal["introduction"] = "introduction"
    version: Label
    client: ClientId
    partition: int | None = Field(default=None, ge=0, lt=1_000_000)
    domain: Label
    label: Label
    classes: tuple[Label, ...] = Field(min_length=1, max_length=2**16)
    image_shape: tuple[_Side, _Side, _Side]
    samples: int = Field(ge=2, lt=MOST_SAMPLES)
    validation: int = Field(ge=0, lt=MOST_SAMPLES)
    test: Digest
    """Identifies its test samples, so that evaluations can be compared."""
    fingerprint: Digest
    """Identifies the network that it has built; see `site.fingerprint`."""
    budget: Budget
    finished: RoundNumber | None = None
    """The round after which the node last stored its own batch norm in this run; None if it has none."""

    @field_validator("image_shape")
    @classmethod
    def _is_an_image(cls, shape: tuple[int, int, int]) -> tuple[int, int, int]:
        if math.prod(shape) > _MOST_PIXELS:
            raise ValueError(f"got images of {math.prod(shape):,} values; expected at most {_MOST_PIXELS:,}")
        return shape


class Refusal(Section):
    """Why a node does not take part."""

    kind: Literal["refusal"] = "refusal"
    reason: str = Field(max_length=MOST_CAUSE)


class Response(Section):
    """A node's answer to the server's first message."""

    content: Annotated[Introduction | Refusal, Field(discriminator="kind")]


class Agreement(Section):
    """What all nodes must have in common."""

    version: str
    classes: tuple[str, ...]
    image_shape: tuple[int, int, int]

    def objection(self, node: Introduction) -> str | None:
        """Why a node cannot take part; None if it can."""
        if node.version != self.version:
            return (
                f"got fedrbn {node.version} at the node; expected {self.version}, as on the server. Install the "
                "same version on both."
            )
        if node.classes != self.classes:
            return (
                f"got classes {_shown(node.classes)} at the node; expected {_shown(self.classes)}. Give the site's "
                "classes the same names and order."
            )
        if node.image_shape != self.image_shape:
            return (
                f"got images of shape {node.image_shape} at the node; expected {self.image_shape}. Resize the site's "
                "images."
            )
        return None


def agreement(version: str, classes: str, nodes: Sequence[Introduction]) -> Agreement:
    """What most nodes have; `classes`, separated by commas, takes precedence if given."""
    common = Counter((node.classes, node.image_shape) for node in nodes).most_common(1)[0][0]
    named = tuple(part.strip() for part in classes.split(",")) if classes else common[0]
    return Agreement(version=version, classes=named, image_shape=common[1])


def too_large(node: Introduction, experiment: Experiment) -> str | None:
    """Why the network for a node's images and classes cannot be built here; None if it can.

    Its size is found first, without allocating it. For a user's own factory that is not possible: its author must limit
    the size.
    """
    model = experiment.model
    try:
        size = state_bytes(model.name, len(node.classes), model.width, node.image_shape)
    except (ValueError, RuntimeError) as error:
        return f"got images of {node.image_shape} at the node ({error}); expected a shape that {model.name!r} accepts."
    needed, free = COPIES * (size or 0), available_memory()
    if free is None or needed <= free:
        return None
    return (
        f"got images of {node.image_shape} and {len(node.classes)} classes at the node, for which training with "
        f"{model.name!r} takes {needed:,} bytes of the server's memory; expected at most {free:,}. Resize the site's "
        "images, or lower model.width."
    )


def wrong_network(node: Introduction, expected: str) -> str | None:
    """Why a node's network differs from the server's; None if it does not."""
    if node.fingerprint == expected:
        return None
    return (
        f"got network {node.fingerprint[:12]} at the node; expected {expected[:12]}, as on the server. Use the same "
        "version of fedrbn on both and, for your own network, the same code."
    )


def wrong_part(node: Introduction, parts: Sequence[Member]) -> str | None:
    """Why a node is not the user that it claims to be in the server's division of the data set; None if it is."""
    if node.partition is None:
        return None
    told = Member(node.client, node.domain, Role.ST.duty, node.samples)
    if node.partition < len(parts) and told == parts[node.partition]:
        return None
    expected = _user(parts[node.partition]) if node.partition < len(parts) else f"one of {len(parts)} partitions"
    return (
        f"got {_user(told)} as partition {node.partition}; expected {expected}, as the server divides the data set. "
        "Use the same data on both sides, and a different partition-id for each SuperNode."
    )


def _user(member: Member) -> str:
    return f"{member.id!r} of {member.domain!r} with {member.samples} samples"


def unplanned(node: Introduction, experiment: Experiment) -> str | None:
    """Why a node is not part of the plan in `federation.duties`; None if it is, or if there is no plan."""
    planned = experiment.federation.duties
    if planned is None or node.client in planned.clients:
        return None
    return (
        f"got client {node.client!r} at the node; expected one of the {len(planned.clients)} in federation.duties. Add "
        "it to the fleet and plan again, or start the server with flower.roles = 'budget'."
    )


def configured_duties(nodes: Mapping[str, Introduction], experiment: Experiment) -> dict[str, Duty]:
    """Duties from `federation.duties`, or from `federation.at`, which gives users by name or as a share per domain."""
    at, planned = experiment.federation.at, experiment.federation.duties
    if planned is not None:
        return {client: planned.clients[client].duty for client in nodes}
    if isinstance(at, tuple):
        chosen = frozenset(client for client, node in nodes.items() if client in at or node.domain in at)
    else:
        chosen = at_users(_users(nodes, experiment), at)
    return {client: (Role.AT if client in chosen else Role.ST).duty for client in nodes}


def _users(nodes: Mapping[str, Introduction], experiment: Experiment) -> dict[str, list[str]]:
    """All users by domain. Users that share a data set are known in advance: roles do not depend on who has joined."""
    data, count = experiment.data, experiment.federation.users_per_domain
    users: dict[str, list[str]] = {}
    if data.name in AVAILABLE and any(node.partition is not None for node in nodes.values()):
        domains = data.domains or AVAILABLE[data.name].domains
        users = {domain: [f"{domain}-{number}" for number in range(count)] for domain in domains}
    ordered = sorted(nodes.items(), key=lambda item: (item[1].partition is None, item[1].partition or 0, item[0]))
    for client, node in ordered:
        if node.partition is None:
            users.setdefault(node.domain, []).append(client)
        else:
            users.setdefault(node.domain, [f"{node.domain}-{number}" for number in range(count)])
    return users


def afforded_duties(nodes: Mapping[str, Introduction], workload: Workload, deadline: float) -> dict[str, Duty]:
    """Duties that nodes can afford: the role they state, else the planner's choice for their measured speed, else ST.

    A node that is too slow even for standard training gets it anyway: the deadline decides whether its update counts.
    """
    duties = {client: (node.budget.role or Role.ST).duty for client, node in nodes.items()}
    measured = [
        Device(client, node.domain, node.samples, speed, node.budget.memory, node.budget.bandwidth)
        for client, node in nodes.items()
        if node.budget.role is None and (speed := node.budget.speed) is not None
    ]
    if measured:
        for assignment in plan(measured, workload, deadline).assignments:
            duties[assignment.device] = assignment.duty or PLAIN
    return duties


def _shown(classes: tuple[str, ...]) -> str:
    return ", ".join(classes[:10]) + (" …" if len(classes) > 10 else "")
