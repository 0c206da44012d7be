"""What server and clients say to each other beside tensors: JSON with settings and numbers from fixed lists, no code.

An ST client's order holds no attack to train with: it gets no settings of an adversary that it has no use for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

import torch
from pydantic import Field

from fedrbn.attacks import Loss, from_config
from fedrbn.config import AttackConfig, DataConfig, Experiment, FederationConfig, MethodConfig, ModelConfig
from fedrbn.config.schema import PrivacyConfig, Section
from fedrbn.errors import MessageError
from fedrbn.federated.methods import Method
from fedrbn.federated.options import configure, named
from fedrbn.flower.questions import Label, QuestionData
from fedrbn.types import Role

MOST_CAUSE = 2000
"""Characters of a cause of failure."""
_AT_ONLY = {"at_loss", "beta", "at_share", "replays", "affine_lr", "gamma", "affine_steps"}
_AS_STANDARD = {"fatavg-free": "fatavg", "fatbn-free": "fatbn"}
"""Free AT is a matter of AT users: what ST users do has a name without it."""

Transport: TypeAlias = Literal["float32", "bfloat16"]
ClientId = Annotated[str, Field(pattern=r"\A[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}\z")]
"""A name that can be part of a file's name."""


class Setup(Section):
    """What every message repeats, because each one starts a new process at the client."""

    format: Literal["fedrbn-flower/1"] = "fedrbn-flower/1"
    token: str = Field(pattern=r"\A[0-9a-f]{32}\z")
    """Names the run, so that a client tells what it remembers of this one from others."""
    model: ModelConfig
    method: MethodConfig
    attack: AttackConfig | None = None
    """The adversary, for AT clients."""
    data: DataConfig
    federation: FederationConfig
    """How data are divided among users, for nodes that take a part of them; without who is AT."""
    privacy: PrivacyConfig
    """What clients do to their uploads before they leave."""
    fast: bool
    """Whether clients compute with faster kernels, whose numbers differ by rounding."""
    seed: int = Field(ge=0, lt=2**63)


class RoundData(Section):
    """`Round` without its tensors and its method."""

    number: int = Field(ge=0)
    seed: int = Field(ge=0, lt=2**63)
    lr: float = Field(ge=0)
    batch_size: int = Field(ge=2)
    local_epochs: int = Field(ge=1)
    steps: int | None = Field(default=None, ge=1)
    freeze: int = Field(default=0, ge=0)
    deadline_seconds: float | None = Field(default=None, gt=0)
    """Seconds after which the server no longer waits; the node stops then, too. None from servers that do not say."""


class TrainOrder(Section):
    """`Train` without its tensors."""

    setup: Setup
    round: RoundData
    client: ClientId
    role: Role
    calibrate: bool
    transport: Transport


class EvaluateOrder(Section):
    """`Evaluate` without its tensors."""

    setup: Setup
    round: RoundData
    client: ClientId
    role: Role
    part: Literal["validation", "test"]
    questions: tuple[QuestionData, ...] = Field(max_length=100)
    limit: int | None = Field(default=None, ge=0)
    transport: Transport


Order: TypeAlias = TrainOrder | EvaluateOrder


class Uploaded(Section):
    """`Upload` without its tensors."""

    kind: Literal["upload"] = "upload"
    client: ClientId
    round: int
    samples: int = Field(ge=1, lt=2**40)
    metrics: dict[Label, float] = Field(max_length=50)


class Answered(Section):
    """`Answers` without its tensors."""

    kind: Literal["answers"] = "answers"
    client: ClientId
    round: int


class Failed(Section):
    """`Failure`."""

    kind: Literal["failure"] = "failure"
    client: ClientId
    round: int
    cause: str = Field(max_length=MOST_CAUSE)


class Reply(Section):
    """What a client answers."""

    content: Annotated[Uploaded | Answered | Failed, Field(discriminator="kind")]


@dataclass(frozen=True)
class Withheld:
    """Stands for an adversary that the server does not tell an ST client of, which has no use for it."""

    def __call__(self, loss: Loss, x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:  # noqa: ARG002
        """Refuses."""
        raise MessageError("got an adversarial step in a job without an attack; expected standard training.")


def setup_for(role: Role, experiment: Experiment, token: str) -> Setup:
    """What a client of this role is told of the experiment: of the adversary only what it has a use for."""
    method, attack = experiment.method, experiment.attack
    needed = role is Role.AT or named(method.name, from_config(attack)).attacks_at_st
    if role is Role.ST:
        plain = method.model_dump(exclude=_AT_ONLY) | {"name": _AS_STANDARD.get(method.name, method.name)}
        method = MethodConfig.model_validate(plain)
    return Setup(
        token=token,
        model=experiment.model,
        method=method,
        attack=attack if needed else None,
        data=experiment.data,
        federation=experiment.federation.model_copy(update={"at": 0.0, "participants": None}),
        privacy=experiment.privacy,
        fast=experiment.run.fast,
        seed=experiment.run.seed,
    )


def method_of(setup: Setup) -> Method:
    """The method as a client knows it."""
    return configure(setup.method, Withheld() if setup.attack is None else from_config(setup.attack))
