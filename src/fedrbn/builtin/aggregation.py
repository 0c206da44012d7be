"""The rules that `train.aggregation` can name; each entry is a function that returns the rule.

A parameter that has the name of a setting in `[train]` receives the value of that setting, if it is set.
"""

from __future__ import annotations

from collections.abc import Mapping

from fedrbn.builtin import BuiltIn

_HOME = "fedrbn.federated.aggregation"

RULES: Mapping[str, BuiltIn] = {
    "mean": BuiltIn(f"{_HOME}.rules:sample_mean", "the mean, weighted by samples"),
    "slack": BuiltIn(f"{_HOME}.rules:slack_mean", "SFAT: AT users with the smallest losses weigh more"),
    "median": BuiltIn(f"{_HOME}.robust:CoordinateMedian", "the median of each coordinate"),
    "trimmed-mean": BuiltIn(f"{_HOME}.robust:TrimmedMean", "each coordinate's mean without its extremes"),
    "krum": BuiltIn(f"{_HOME}.rules:krum", "the upload closest to its neighbours"),
    "multi-krum": BuiltIn(f"{_HOME}.rules:multi_krum", "the mean of the uploads closest to their neighbours"),
    "geometric-median": BuiltIn(f"{_HOME}.robust:GeometricMedian", "RFA: the point closest to all uploads"),
    "norm-bound": BuiltIn(f"{_HOME}.robust:NormBound", "the mean of updates with bounded norm"),
}
