"""The questions of an evaluation as data: kinds and numbers from fixed lists, never code."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, fields
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, TypeAdapter, ValidationError

from fedrbn.attacks import LogitsAttack, Untargeted, from_config
from fedrbn.attacks.named import classes
from fedrbn.builtin.attacks import FAMILIES, ON_LOSS
from fedrbn.config import AttackConfig
from fedrbn.config.section import Section
from fedrbn.errors import MessageError
from fedrbn.evaluation.accuracy import CONFIDENT, Accuracy, Deployment, deployment_name
from fedrbn.evaluation.diagnosis import Diagnosis
from fedrbn.federated.protocol import Count, Label, Question
from fedrbn.types import Branch

_DEPLOYMENTS: dict[str, Deployment] = {deployment_name(each): each for each in (*Branch, CONFIDENT)}


class AttackData(Section):
    """An attack: a kind and its settings, or a config section, which may name your own attack."""

    kind: Label | None = None
    settings: dict[str, Any] = Field(default_factory=dict, max_length=20)
    config: AttackConfig | None = None


class AccuracyData(Section):
    """`Accuracy` as data."""

    ask: Literal["accuracy"] = "accuracy"
    deployment: Label
    label: Label = ""
    attack: AttackData | None = None
    adaptive: bool = False
    limit: Count | None = None
    radius: float | None = Field(default=None, ge=0)


class DiagnosisData(Section):
    """`Diagnosis` as data."""

    ask: Literal["diagnosis"] = "diagnosis"
    deployment: Label
    samples: Count


QuestionData: TypeAlias = Annotated[AccuracyData | DiagnosisData, Field(discriminator="ask")]


def as_data(question: Question, config: AttackConfig) -> AccuracyData | DiagnosisData:
    """A question as data; `config` is the experiment's attack, for one that has no settings of a known kind."""
    match question:
        case Accuracy(deployment, label, attack, adaptive, limit, radius):
            return AccuracyData(
                deployment=_name(deployment),
                # without an attack its name is not needed, and an ST client should not learn it
                label="" if attack is None and limit is None else label,
                attack=None if attack is None else _attack_data(attack, config),
                adaptive=adaptive,
                limit=limit,
                radius=radius,
            )
        case Diagnosis(deployment, samples):
            return DiagnosisData(deployment=_name(deployment), samples=samples)
        case _:
            raise MessageError(
                f"got a question of type {type(question).__name__}; expected Accuracy or Diagnosis, which can be sent "
                "as data. Use your own questions in an embedded run."
            )


def from_data(data: AccuracyData | DiagnosisData) -> Question:
    """The question that `as_data` described."""
    if isinstance(data, AccuracyData):
        attack = None if data.attack is None else attack_from(data.attack)
        return Accuracy(_deployment(data.deployment), data.label, attack, data.adaptive, data.limit, data.radius)
    return Diagnosis(_deployment(data.deployment), data.samples)


def attacks_in(questions: Iterable[AccuracyData | DiagnosisData]) -> list[AttackConfig]:
    """The attacks that questions give as a config section, which may name user code."""
    given = [question.attack for question in questions if isinstance(question, AccuracyData)]
    return [attack.config for attack in given if attack is not None and attack.config is not None]


def attack_from(data: AttackData) -> LogitsAttack:
    """The attack that `AttackData` describes."""
    if data.kind is None:
        if data.config is None:
            raise MessageError("got an attack without kind and config; expected one of them.")
        return Untargeted(from_config(data.config))
    known = classes(FAMILIES)
    if data.kind not in known:
        raise MessageError(
            f"got an attack of kind {data.kind!r}; expected one of {', '.join(known)}. Check that both sides run the "
            "same version of fedrbn."
        )
    made = _made(known[data.kind], data.settings)
    return Untargeted(made) if data.kind in classes(ON_LOSS) else made


def _attack_data(attack: LogitsAttack, config: AttackConfig) -> AttackData:
    value: Any = attack.attack if isinstance(attack, Untargeted) else attack
    for kind, of in classes(FAMILIES).items():
        if type(value) is of:
            return AttackData(kind=kind, settings=asdict(value))
    if isinstance(attack, Untargeted) and value == from_config(config):
        return AttackData(config=config)
    raise MessageError(
        f"got attack {value!r}; expected a built-in one or the experiment's own, which can be sent as data. Evaluate "
        "with it in an embedded run."
    )


def _made(kind: type[Any], settings: dict[str, Any]) -> Any:
    unknown = settings.keys() - {field.name for field in fields(kind)}
    try:
        if unknown:
            raise ValueError(f"unknown {sorted(unknown)[0][:100]!r}")
        return TypeAdapter(kind).validate_python(settings)
    except (ValidationError, ValueError) as error:
        raise MessageError(
            f"got settings of {kind.__name__} that are not valid ({error}); expected valid ones. Check that both "
            "sides run the same version of fedrbn."
        ) from None


def _name(deployment: Deployment) -> str:
    name = deployment_name(deployment)
    if _DEPLOYMENTS.get(name) != deployment:
        raise MessageError(f"got deployment {name!r}; expected one of {', '.join(_DEPLOYMENTS)} by name.")
    return name


def _deployment(name: str) -> Deployment:
    if name not in _DEPLOYMENTS:
        raise MessageError(f"got deployment {name!r}; expected one of {', '.join(_DEPLOYMENTS)}.")
    return _DEPLOYMENTS[name]
