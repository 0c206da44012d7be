"""Default values of settings that depend on the method or the aggregation rule."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from typing import Any

from fedrbn.attacks import PGD
from fedrbn.builtin.aggregation import RULES
from fedrbn.config import TrainConfig
from fedrbn.federated.methods import METHODS
from fedrbn.federated.objectives import Mart, Trades
from fedrbn.federated.options import settings


def own_defaults() -> dict[tuple[str, str], str]:
    """(section, key) → the default for each method or rule that has the setting, as text."""
    methods = {name: settings(make(PGD())) for name, make in METHODS.items()}
    rules = {name: _parameters(name) for name in RULES}
    return {
        **{("method", key): text for key, text in _texts(methods).items()},
        ("method", "beta"): _by_value({"trades": Trades(PGD()).beta, "mart": Mart(PGD()).beta}),
        **{("train", key): text for key, text in _texts(rules).items()},
    }


def _parameters(rule: str) -> dict[str, Any]:
    """The settings of [train] that a rule has, and their defaults."""
    found = inspect.signature(RULES[rule].load()).parameters
    return {name: one.default for name, one in found.items() if name in TrainConfig.model_fields}


def _texts(owners: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    keys = dict.fromkeys(key for own in owners.values() for key in own)
    return {key: _by_value({name: own[key] for name, own in owners.items() if key in own}) for key in keys}


def _by_value(values: Mapping[str, Any]) -> str:
    """One value if all owners have the same; otherwise each value with its owners, the largest group as "others"."""
    shown = {name: "not set" if value is None else json.dumps(_rounded(value)) for name, value in values.items()}
    distinct = dict.fromkeys(shown.values())
    if len(distinct) == 1:
        return next(iter(distinct))
    owners = {text: [name for name in shown if shown[name] == text] for text in distinct}
    ordered = sorted(owners, key=lambda text: len(owners[text]))
    *few, most = ordered
    return "; ".join([*(f"{text}: {', '.join(owners[text])}" for text in few), f"{most}: others"])


def _rounded(value: Any) -> Any:
    return float(f"{value:.4g}") if isinstance(value, float) else value
