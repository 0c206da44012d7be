"""The JSON part of messages between server and clients: settings and numbers from fixed lists, never code.

An ST client's order contains no training attack: it receives no settings of an adversary that it does not need.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, Self, TypeAlias, cast

import torch
from pydantic import Field, model_validator

from fedrbn.attacks import Loss, from_config
from fedrbn.builtin.methods import METHODS
from fedrbn.config import AttackConfig, DataConfig, Experiment, FederationConfig, MethodConfig, ModelConfig
from fedrbn.config.schema import PrivacyConfig
from fedrbn.config.section import Section
from fedrbn.errors import MessageError
from fedrbn.federated.methods import Method
from fedrbn.federated.options import at_options, configure, named
from fedrbn.federated.protocol import Answers, Evaluate, Failure, Result, Round, Seed, Train, Upload
from fedrbn.flower.questions import QuestionData
from fedrbn.flower.wire import Without
from fedrbn.types import Role

Transport: TypeAlias = Literal["float32", "bfloat16"]


class Setup(Section):
    """What every message repeats, because each one starts a new process at the client."""

    format: Literal["fedrbn-flower/2"] = "fedrbn-flower/2"
    token: str = Field(pattern=r"\A[0-9a-f]{32}\z")
    """Identifies the run, so that a client can separate its memory of this run from that of others."""
    model: ModelConfig
    method: MethodConfig
    attack: AttackConfig | None = None
    """The adversary, for AT clients."""
    data: DataConfig
    federation: FederationConfig
    """How data are divided among users, for nodes that take a part of them; it does not say who is AT."""
    privacy: PrivacyConfig
    """What clients apply to their uploads before sending them."""
    fast: bool
    """Whether clients compute with faster kernels, whose numbers differ by rounding."""
    seed: Seed


RoundData: TypeAlias = Annotated[Round, Without("method", "shared")]


class TrainOrder(Section):
    """`Train` and everything needed to do it, except tensors."""

    setup: Setup
    round: RoundData
    job: Annotated[Train, Without("personal")]
    transport: Transport

    @property
    def role(self) -> Role:
        """The client's role."""
        return self.job.role


class EvaluateOrder(Section):
    """`Evaluate` and everything needed to do it, except tensors."""

    setup: Setup
    round: RoundData
    job: Annotated[Evaluate, Without("personal", "questions")]
    role: Role
    questions: tuple[QuestionData, ...] = Field(max_length=100)
    transport: Transport


Order: TypeAlias = TrainOrder | EvaluateOrder


class Reply(Section):
    """A client's answer without tensors: exactly one of these."""

    upload: Annotated[Upload, Without("shared", "personal")] | None = None
    answers: Annotated[Answers, Without("correct")] | None = None
    failure: Annotated[Failure, Without()] | None = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        if len(self.model_dump(exclude_none=True)) != 1:
            raise ValueError("got several answers or none; expected one of upload, answers, failure")
        return self

    @property
    def result(self) -> Result:
        """The given answer."""
        return self.upload or self.answers or cast(Failure, self.failure)


@dataclass(frozen=True)
class Withheld:
    """Stands for an adversary that the server does not reveal to an ST client, which does not need it."""

    def __call__(self, loss: Loss, x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:  # noqa: ARG002
        """Raise an error."""
        raise MessageError("got an adversarial step in a job without an attack; expected standard training.")


def setup_for(role: Role, experiment: Experiment, token: str) -> Setup:
    """What a client of this role is told about the experiment; about the adversary only what it needs."""
    method, attack = experiment.method, experiment.attack
    whole = named(method.name, from_config(attack))
    needed = role is Role.AT or whole.attacks_at_st
    if role is Role.ST:
        plain = method.model_dump(exclude=set(at_options(whole)))
        entry = METHODS.get(method.name)
        method = MethodConfig.model_validate(plain | {"name": (entry and entry.for_st) or method.name})
    return Setup(
        token=token,
        model=experiment.model,
        method=method,
        attack=attack if needed else None,
        data=experiment.data,
        federation=experiment.federation.model_copy(
            update={"at": 0.0, "participants": None, "duties": None, "replan": None}
        ),
        privacy=experiment.privacy,
        fast=experiment.run.fast,
        seed=experiment.run.seed,
    )


def method_of(setup: Setup) -> Method:
    """The method in the form that a client knows."""
    return configure(setup.method, Withheld() if setup.attack is None else from_config(setup.attack))
