"""Server and nodes agree before they train: on the version, the network, the classes; then the server decides roles.

The server sends a `Setup` as it would for an ST client. A node answers with an `Introduction`, which holds nothing of
its data but names, shapes, counts and a digest; or with the reason why it will not take part.
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
"""Values of one image, as for model files: 1024 x 1024 pixels of 4 channels."""
COPIES = 4
"""Networks that a server holds at least: its own, the shared weights, their mean so far, and an upload."""
_Side = Annotated[int, Field(ge=1, le=4096)]
_Rate = Annotated[float, Field(gt=0, le=1e30)]


class Budget(Section):
    """What a node says of its hardware: a role, or what was measured, or nothing."""

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
    """What a node says of itself. Every number has a bound: the server builds a network from some of them."""

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
    """Names its test samples, so that evaluations can be compared."""
    fingerprint: Digest
    """Names the network that it has built; see `site.fingerprint`."""
    budget: Budget
    finished: RoundNumber | None = None
    """Rounds after which the node last kept its own batch norm in this run; None if it has none."""

    @field_validator("image_shape")
    @classmethod
    def _is_an_image(cls, shape: tuple[int, int, int]) -> tuple[int, int, int]:
        if math.prod(shape) > _MOST_PIXELS:
            raise ValueError(f"got images of {math.prod(shape):,} values; expected at most {_MOST_PIXELS:,}")
        return shape


class Refusal(Section):
    """Why a node will not take part."""

    kind: Literal["refusal"] = "refusal"
    reason: str = Field(max_length=MOST_CAUSE)


class Response(Section):
    """A node's answer to the server's first message."""

    content: Annotated[Introduction | Refusal, Field(discriminator="kind")]


class Agreement(Section):
    """What every node has to have in common."""

    version: str
    classes: tuple[str, ...]
    image_shape: tuple[int, int, int]

    def objection(self, node: Introduction) -> str | None:
        """Why a node cannot take part; None if it can."""
        if node.version != self.version:
            return (
                f"got fedrbn {node.version} at the node; expected {self.version}, the server's. Install the same "
                "version on both."
            )
        if node.classes != self.classes:
            return (
                f"got classes {_shown(node.classes)} at the node; expected {_shown(self.classes)}. Name and order the "
                "classes of the site's data like them."
            )
        if node.image_shape != self.image_shape:
            return (
                f"got images of shape {node.image_shape} at the node; expected {self.image_shape}. Resize the site's "
                "images."
            )
        return None


def agreement(version: str, classes: str, nodes: Sequence[Introduction]) -> Agreement:
    """What most nodes have; the classes as given, separated by commas, if they are."""
    common = Counter((node.classes, node.image_shape) for node in nodes).most_common(1)[0][0]
    named = tuple(part.strip() for part in classes.split(",")) if classes else common[0]
    return Agreement(version=version, classes=named, image_shape=common[1])


def too_large(node: Introduction, experiment: Experiment) -> str | None:
    """Why the network that a node's images and classes ask for cannot be built here; None if it can.

    It is built without memory first. A factory of one's own cannot be; its size is for whoever wrote it to limit.
    """
    model = experiment.model
    try:
        size = state_bytes(model.name, len(node.classes), model.width, node.image_shape)
    except (ValueError, RuntimeError) as error:
        return f"got images of {node.image_shape} at the node ({error}); expected some that {model.name!r} takes."
    needed, free = COPIES * (size or 0), available_memory()
    if free is None or needed <= free:
        return None
    return (
        f"got images of {node.image_shape} and {len(node.classes)} classes at the node, for which training with "
        f"{model.name!r} takes {needed:,} bytes of the server's memory; expected at most {free:,}. Resize the site's "
        "images, or make model.width smaller."
    )


def wrong_network(node: Introduction, expected: str) -> str | None:
    """Why a node's network is not the server's; None if it is."""
    if node.fingerprint == expected:
        return None
    return (
        f"got network {node.fingerprint[:12]} at the node; expected {expected[:12]}, the server's. Give both the same "
        "version of fedrbn and, for a network of your own, of its code."
    )


def wrong_part(node: Introduction, parts: Sequence[Member]) -> str | None:
    """Why a node is not the user it says it is, of those that the server's data set is divided among; None if it is."""
    if node.partition is None:
        return None
    told = Member(node.client, node.domain, Role.ST.duty, node.samples)
    if node.partition < len(parts) and told == parts[node.partition]:
        return None
    expected = _user(parts[node.partition]) if node.partition < len(parts) else f"one of {len(parts)} partitions"
    return (
        f"got {_user(told)} as partition {node.partition}; expected {expected}, as the server divides the data set. "
        "Give both sides the same data, and each SuperNode its own partition-id."
    )


def _user(member: Member) -> str:
    return f"{member.id!r} of {member.domain!r} with {member.samples} samples"


def unplanned(node: Introduction, experiment: Experiment) -> str | None:
    """Why a node has no place in the plan that `federation.duties` holds; None if it has one, or there is no plan."""
    planned = experiment.federation.duties
    if planned is None or node.client in planned.clients:
        return None
    return (
        f"got client {node.client!r} at the node; expected one of the {len(planned.clients)} of federation.duties. Add "
        "it to the fleet and plan again, or start the server with flower.roles = 'budget'."
    )


def configured_duties(nodes: Mapping[str, Introduction], experiment: Experiment) -> dict[str, Duty]:
    """As `federation.duties` says, or `federation.at`, which knows users by name or as a share of each domain."""
    at, planned = experiment.federation.at, experiment.federation.duties
    if planned is not None:
        return {client: planned.clients[client].duty for client in nodes}
    if isinstance(at, tuple):
        chosen = frozenset(client for client, node in nodes.items() if client in at or node.domain in at)
    else:
        chosen = at_users(_users(nodes, experiment), at)
    return {client: (Role.AT if client in chosen else Role.ST).duty for client in nodes}


def _users(nodes: Mapping[str, Introduction], experiment: Experiment) -> dict[str, list[str]]:
    """All users by domain. Those that share a data set are known before they come: roles do not depend on who came."""
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
    """Duties as nodes can afford: of the role they name, else what the planner finds for what they measured, else ST.

    A node that is too slow even for plain standard training gets that: the deadline decides whether it counts.
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
