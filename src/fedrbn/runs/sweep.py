"""Several runs on the same federation: methods × settings × seeds, kept in one store by the key of their config."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedrbn import config
from fedrbn.attacks import PGD
from fedrbn.config import Experiment, MethodConfig
from fedrbn.errors import ConfigError
from fedrbn.evaluation.results import Evaluation, MethodComparison
from fedrbn.federated.methods import METHODS
from fedrbn.federated.options import options, resolved
from fedrbn.runs.store import run_folder
from fedrbn.runs.train import resume, run
from fedrbn.runs.watcher import Watcher

Setting = tuple[str, str, list[Any]]
"""(section, key, values): several values make a sweep."""

OWN_OPTIONS = {("method", "name"): "--methods", ("run", "seed"): "--seeds"}
"""Settings that a sweep itself sets for every run."""


@dataclass(frozen=True)
class SweepCell:
    """One run of a sweep, and the row of the table that it belongs to."""

    row: str
    experiment: Experiment


def cells(
    values: Mapping[str, Any], methods: Sequence[str], wanted: Sequence[Setting], seeds: Sequence[int]
) -> list[SweepCell]:
    """Every combination once. Options that a built-in method does not have are left out for that method."""
    for section, key, _ in wanted:
        if (section, key) in OWN_OPTIONS:
            raise ConfigError(f"got setting {section}.{key}; expected it as {OWN_OPTIONS[section, key]} of compare.")
    found: dict[tuple[str, str], SweepCell] = {}
    for method in methods:
        own = _without_useless(values, method)
        useful = [setting for setting in wanted if _applies(method, setting)]
        swept = [setting for setting in useful if len(setting[2]) > 1]
        for choice in itertools.product(*(choices for _, _, choices in useful)):
            chosen = [(section, key, value) for (section, key, _), value in zip(useful, choice, strict=True)]
            named = [f"{key}={value}" for section, key, value in chosen if any(s[:2] == (section, key) for s in swept)]
            row = " ".join([method, *named])
            for seed in seeds:
                fixed = [("method", "name", method), ("run", "seed", seed)]
                experiment = resolved(config.make(config.with_settings(own, [*chosen, *fixed])))
                found.setdefault((row, experiment.key()), SweepCell(row, experiment))
    return list(found.values())


def complete(cell: SweepCell, store: Path, watcher: Watcher | None = None) -> Evaluation:
    """The record of a cell's run: from the store if it is finished, otherwise run or continued now."""
    path = run_folder(store, cell.experiment)
    if not (path / "config.toml").exists():
        return run(cell.experiment, path, watcher=watcher)
    return resume(path, workers=cell.experiment.run.workers, watcher=watcher)


def compare(
    values: Mapping[str, Any],
    methods: Sequence[str],
    *,
    seeds: Sequence[int] = (1,),
    sweep: Mapping[str, Sequence[Any]] | None = None,
    store: Path | str = "runs",
    watcher: Watcher | None = None,
) -> MethodComparison:
    """Run several methods on the same federation, as `fedrbn compare` does; finished runs of the store are reused.

    `values` are the settings that all runs share, in the form of `make`. `sweep` contains settings with several values:
    `{"method.lam": [0, 0.5, 1]}`.
    """
    swept: list[Setting] = []
    for name, several in (sweep or {}).items():
        section, key, _ = config.parse_setting(f"{name}=0")
        swept.append((section, key, list(several)))
    rows: dict[str, list[Evaluation]] = {}
    for cell in cells(values, methods, swept, seeds):
        rows.setdefault(cell.row, []).append(complete(cell, Path(store), watcher))
    return MethodComparison(rows)


def _without_useless(values: Mapping[str, Any], method: str) -> dict[str, Any]:
    """The settings of a config file without options that this method does not have."""
    section = values.get("method", {})
    if not isinstance(section, Mapping):
        return dict(values)
    return {**values, "method": {k: v for k, v in section.items() if _applies(method, ("method", k, [v]))}}


def _applies(method: str, setting: Setting) -> bool:
    """Whether the method has this option; one that no method has is kept, so that the config refuses it."""
    section, key, _ = setting
    if section != "method" or key not in MethodConfig.model_fields or method not in METHODS:
        return True
    return key in options(METHODS[method](PGD()))
