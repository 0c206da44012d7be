"""The aggregation that an experiment names, with its settings; a setting that the rule does not have is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

from fedrbn.config import Experiment, TrainConfig, plugins
from fedrbn.errors import ConfigError
from fedrbn.federated.aggregation.layout import Local
from fedrbn.federated.aggregation.mean import Aggregate, mean
from fedrbn.federated.aggregation.robust import CoordinateMedian, GeometricMedian, Krum, NormBound, TrimmedMean
from fedrbn.federated.aggregation.slack import Slack
from fedrbn.federated.methods import Method
from fedrbn.federated.privacy.mechanism import Mechanism, PrivateMean

SHARE = 0.2
"""Of the clients of a round, so many are withstood if train.malicious does not say otherwise."""

RULES: Mapping[str, tuple[frozenset[str], Callable[[TrainConfig], Aggregate]]] = {
    "mean": (frozenset(), lambda _: mean),
    "slack": (
        frozenset({"slack", "slack_share"}),
        lambda train: Slack(**_given(alpha=train.slack, share=train.slack_share)),
    ),
    "median": (frozenset(), lambda _: CoordinateMedian()),
    "trimmed-mean": (frozenset({"malicious"}), lambda train: TrimmedMean(_malicious(train))),
    "krum": (frozenset({"malicious"}), lambda train: Krum(_malicious(train))),
    "multi-krum": (frozenset({"malicious", "keep"}), lambda train: Krum(_malicious(train), train.keep)),
    "geometric-median": (frozenset(), lambda _: GeometricMedian()),
    "norm-bound": (frozenset({"bound"}), lambda train: NormBound(train.bound)),
}
"""For each rule the settings of [train] that it has, and how it is made of them."""

_SETTINGS = ("slack", "slack_share", "malicious", "keep", "bound")


def aggregation(experiment: Experiment, method: Method, clients: int) -> Aggregate:
    """The rule for an experiment whose rounds have so many clients."""
    private = experiment.privacy
    if private.update_at == "server" and private.update_noise is not None:
        return _private_mean(experiment, method)
    rule = _rule(experiment.train)
    if isinstance(rule, Krum | TrimmedMean):
        rule.check(clients)
    return rule


def _rule(train: TrainConfig) -> Aggregate:
    name = train.aggregation
    known, make = RULES.get(name, (frozenset[str](), None))
    for setting in _SETTINGS:
        if getattr(train, setting) is not None and setting not in known:
            having = " or ".join(repr(rule) for rule, (settings, _) in RULES.items() if setting in settings)
            raise ConfigError(
                f"got train.{setting} = {getattr(train, setting):g} with train.aggregation = {name!r}, which has no "
                f"such part; expected aggregation = {having}. Choose it, or leave {setting} out."
            )
    if make is not None:
        return make(train)
    if not plugins.is_reference(name):
        raise plugins.unknown("train.aggregation", name, RULES)
    found = plugins.resolve(name)
    if not callable(found):
        raise ConfigError(
            f"got train.aggregation {name!r}, which is {type(found).__name__}; expected a function "
            "(shared, contributions) -> shared."
        )
    return cast(Aggregate, found)


def _given(**settings: float | None) -> dict[str, float]:
    """The settings that are not left to the rule's own values."""
    return {name: value for name, value in settings.items() if value is not None}


def _malicious(train: TrainConfig) -> float:
    return SHARE if train.malicious is None else train.malicious


def _private_mean(experiment: Experiment, method: Method) -> Aggregate:
    private = experiment.privacy
    if experiment.train.aggregation != "mean":
        raise ConfigError(
            f"got privacy.update_at = 'server' with train.aggregation = {experiment.train.aggregation!r}; expected "
            "'mean', whose sensitivity to one client is known. Choose it, or privacy.update_at = 'client'."
        )
    if method.local not in {Local.STATISTICS, Local.BATCH_NORM}:
        raise ConfigError(
            f"got privacy.update_at = 'server' with method.local = {method.local.value!r}; expected 'bn' or "
            "'bn-stats', because noise on averaged BN statistics would make variances negative."
        )
    mechanism = Mechanism(private.update_clip or 1.0, private.update_noise or 0.0)
    return PrivateMean(mechanism, None if private.secret else experiment.run.seed)
