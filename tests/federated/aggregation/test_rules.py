"""The aggregation that an experiment names."""

from __future__ import annotations

import pytest

from fedrbn.attacks import PGD
from fedrbn.config import ConfigError, Experiment, make
from fedrbn.federated.aggregation.mean import Aggregate, RoleMean, mean
from fedrbn.federated.aggregation.robust import CoordinateMedian, GeometricMedian, Krum, NormBound, TrimmedMean
from fedrbn.federated.aggregation.rules import aggregation
from fedrbn.federated.aggregation.slack import Slack
from fedrbn.federated.methods import METHODS
from fedrbn.federated.privacy.mechanism import Mechanism, PrivateMean


def rule(method: str = "fedrbn", clients: int = 25, privacy: object = None, **train: object) -> Aggregate:
    experiment = make({"train": train, "privacy": privacy or {}, "run": {"seed": 7}})
    return aggregation(experiment, METHODS[method](PGD()), clients)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, mean),
        ({"at_weight": 2}, RoleMean(2.0)),
        ({"at_weight": 1}, mean),
        ({"aggregation": "slack"}, Slack()),
        ({"aggregation": "slack", "slack": 0.5}, Slack(0.5)),
        ({"aggregation": "slack", "slack_share": 0.5}, Slack(1 / 6, 0.5)),
        ({"aggregation": "median"}, CoordinateMedian()),
        ({"aggregation": "trimmed-mean"}, TrimmedMean(0.2)),
        ({"aggregation": "trimmed-mean", "malicious": 3}, TrimmedMean(3.0)),
        ({"aggregation": "krum"}, Krum(0.2, 1)),
        ({"aggregation": "multi-krum", "malicious": 0.1}, Krum(0.1, None)),
        ({"aggregation": "multi-krum", "keep": 4}, Krum(0.2, 4)),
        ({"aggregation": "geometric-median"}, GeometricMedian()),
        ({"aggregation": "norm-bound", "bound": 0.5}, NormBound(0.5)),
    ],
)
def test_rules_by_name(settings: dict[str, object], expected: Aggregate) -> None:
    assert rule(**settings) == expected


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({"bound": 1.0}, "expected aggregation = 'norm-bound'"),
        ({"aggregation": "median", "malicious": 1}, "'trimmed-mean' or 'krum' or 'multi-krum'"),
        ({"aggregation": "krum", "keep": 2}, "expected aggregation = 'multi-krum'"),
        ({"aggregation": "median", "at_weight": 2}, "expected aggregation = 'mean'"),
        ({"slack": 0.1}, "expected aggregation = 'slack'"),
        ({"slack_share": 0.1}, "expected aggregation = 'slack'"),
    ],
)
def test_a_setting_that_the_rule_lacks_is_refused(settings: dict[str, object], wanted: str) -> None:
    with pytest.raises(ConfigError, match=wanted):
        rule(**settings)


def test_too_few_clients_are_refused_before_the_first_round() -> None:
    with pytest.raises(ConfigError, match="got 6 clients"):
        rule(aggregation="krum", clients=6)


def test_an_unknown_rule_names_the_nearest() -> None:
    with pytest.raises(ValueError, match="Did you mean 'multi-krum'"):
        rule(aggregation="multikrum")


def test_central_privacy_takes_the_place_of_the_mean() -> None:
    central = {"update_noise": 0.5, "update_clip": 2.0, "update_at": "server"}
    assert rule(privacy=central) == PrivateMean(Mechanism(2.0, 0.5), 7)
    assert rule(privacy={**central, "secret": True}) == PrivateMean(Mechanism(2.0, 0.5), None)
    assert rule(privacy={**central, "update_at": "client"}) is mean


def test_central_privacy_needs_the_mean_and_local_statistics() -> None:
    central = {"update_noise": 0.5, "update_at": "server"}
    with pytest.raises(ConfigError, match="expected 'mean'"):
        rule(aggregation="median", privacy=central)
    with pytest.raises(ConfigError, match=r"train.at_weight = 2; expected no weights"):
        rule(at_weight=2, privacy=central)
    with pytest.raises(ConfigError, match="variances negative"):
        rule("fatavg", privacy=central)


def test_settings_that_are_left_open_do_not_rename_runs() -> None:
    """Runs are found by this key: it must not change because robustness and privacy came to be settings."""
    content = Experiment().model_dump(mode="json", exclude_none=True)
    assert content["privacy"] == {} == content["malice"]
    assert not {"malicious", "keep", "bound"} & content["train"].keys()
    assert not {"donor_cap", "donor_mean", "donor_range"} & content["method"].keys()
    assert make({"malice": {"attack": "sign-flip"}}).key() != make({}).key()
