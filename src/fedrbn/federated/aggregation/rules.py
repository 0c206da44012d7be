"""The aggregation rule that an experiment names, with its settings; a setting that the rule lacks is an error."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterable, Iterator
from typing import cast

from fedrbn.builtin.aggregation import RULES
from fedrbn.config import Experiment, TrainConfig, plugins
from fedrbn.errors import ConfigError, FederationError
from fedrbn.federated.aggregation.layout import Local
from fedrbn.federated.aggregation.mean import Aggregate, Contribution, RoleMean, mean
from fedrbn.federated.aggregation.robust import Krum
from fedrbn.federated.aggregation.slack import Slack
from fedrbn.federated.methods import Method
from fedrbn.federated.privacy.mechanism import Mechanism, PrivateMean
from fedrbn.types import Tensors


def aggregation(experiment: Experiment, method: Method, clients: int) -> Aggregate:
    """The rule for an experiment with this number of clients per round."""
    private = experiment.privacy
    if private.update_at == "server" and private.update_noise is not None:
        return _private_mean(experiment, method)
    rule = _rule(experiment.train)
    check = getattr(rule, "check", None)  # only rules that need a minimum number of clients have it
    if check is not None:
        check(clients)
    return rule


def _rule(train: TrainConfig) -> Aggregate:
    name = train.aggregation
    settings = {rule: _settings(rule) for rule in RULES}
    for setting, having in _by_setting(settings).items():
        if getattr(train, setting) is not None and name not in having:
            rules = " or ".join(map(repr, having))
            raise ConfigError(
                f"got train.{setting} = {getattr(train, setting):g} with train.aggregation = {name!r}, which does not "
                f"use it; expected aggregation = {rules}. Choose it, or leave {setting} out."
            )
    if name in RULES:
        return cast(Aggregate, RULES[name](**_given({key: getattr(train, key) for key in settings[name]})))
    if not plugins.is_reference(name):
        raise plugins.unknown("train.aggregation", name, RULES)
    found = plugins.resolve(name)
    if not plugins.accepts(found, 2):
        raise ConfigError(plugins.wrong_signature("aggregation", name, found))
    return _checked(name, cast(Aggregate, found))


def _checked(name: str, rule: Aggregate) -> Aggregate:
    """Your own rule, whose errors are explained and whose result must be tensors like the shared ones."""

    @functools.wraps(rule)
    def aggregate(shared: Tensors, contributions: Iterable[Contribution]) -> Tensors:
        failures: list[Exception] = []
        try:
            made = plugins.called("aggregation", name, rule, shared, _noting(contributions, failures))
        except ConfigError:
            if failures:
                raise failures[0] from None
            raise
        expected = "expected a dictionary with the names and shapes of `shared`"
        if not isinstance(made, dict):
            raise FederationError(f"got {type(made).__name__} from aggregation {name!r}; {expected}. Return it.")
        other = [key for key in shared if getattr(made.get(key), "shape", None) != shared[key].shape]
        other += [key for key in made if key not in shared]
        if other:
            raise FederationError(
                f"got other tensors from aggregation {name!r}, such as {other[0]!r} ({len(other)} in all); {expected}. "
                "Keep the value in `shared` of a name that nobody sent."
            )
        return cast(Tensors, made)

    return aggregate


def _noting(contributions: Iterable[Contribution], failures: list[Exception]) -> Iterator[Contribution]:
    """The contributions; an error while they are collected is noted, because it is not an error of the rule."""
    try:
        yield from contributions
    except Exception as error:
        failures.append(error)
        raise


def _settings(rule: str) -> list[str]:
    """The settings of [train] that a built-in rule uses: its parameters with the same names."""
    parameters = inspect.signature(RULES[rule].load()).parameters
    return [name for name in TrainConfig.model_fields if name in parameters]


def _by_setting(settings: dict[str, list[str]]) -> dict[str, list[str]]:
    """For each setting, the rules that use it."""
    names = [name for name in TrainConfig.model_fields if any(name in own for own in settings.values())]
    return {name: [rule for rule, own in settings.items() if name in own] for name in names}


def _given(settings: dict[str, float | None]) -> dict[str, float]:
    """The settings that have a value; the others keep the rule's default."""
    return {name: value for name, value in settings.items() if value is not None}


def sample_mean(at_weight: float = 1.0) -> Aggregate:
    """The mean, weighted by samples; samples of AT users count `at_weight` times."""
    return mean if at_weight == 1 else RoleMean(at_weight)


def slack_mean(slack: float = 1 / 6, slack_share: float = 0.2) -> Slack:
    """SFAT's mean."""
    return Slack(slack, slack_share)


def krum(malicious: float = 0.2) -> Krum:
    """Krum, which keeps one upload."""
    return Krum(malicious, keep=1)


def multi_krum(malicious: float = 0.2, keep: int | None = None) -> Krum:
    """Multi-Krum, which averages `keep` uploads, or all but the malicious ones."""
    return Krum(malicious, keep)


def _private_mean(experiment: Experiment, method: Method) -> Aggregate:
    private = experiment.privacy
    if experiment.train.aggregation != "mean":
        raise ConfigError(
            f"got privacy.update_at = 'server' with train.aggregation = {experiment.train.aggregation!r}; expected "
            "'mean', whose sensitivity to one client is known. Choose it, or privacy.update_at = 'client'."
        )
    if experiment.train.at_weight is not None:
        raise ConfigError(
            f"got privacy.update_at = 'server' with train.at_weight = {experiment.train.at_weight:g}; expected no "
            "weights, because the noise assumes that all clients have equal weight. Leave at_weight out, or choose "
            "privacy.update_at = 'client'."
        )
    if method.local not in {Local.STATISTICS, Local.BATCH_NORM}:
        raise ConfigError(
            f"got privacy.update_at = 'server' with method.local = {method.local.value!r}; expected 'bn' or "
            "'bn-stats', because noise on averaged BN statistics would make variances negative."
        )
    mechanism = Mechanism(private.update_clip or 1.0, private.update_noise or 0.0)
    return PrivateMean(mechanism, None if private.secret else experiment.run.seed)
