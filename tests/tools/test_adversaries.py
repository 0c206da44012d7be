"""The declared experiments on attackers and privacy can be run, and their tables say what was measured."""

from __future__ import annotations

import importlib.util
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fedrbn.federated.options import resolved

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("adversaries", ROOT / "benchmarks" / "adversaries.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up there
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def declared(name: str) -> dict[str, Any]:
    return tomllib.loads((ROOT / "benchmarks" / f"{name}.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("name", "cells"), [("byzantine", 5 * 7 + 5 * 5), ("privacy", 8 + 3)])
def test_every_cell_is_an_experiment_of_its_own(script: ModuleType, name: str, cells: int) -> None:
    found = script.cells(declared(name), 1)
    keys = {(cell.part, resolved(cell.experiment).key()) for cell in found}
    assert len(found) == len(keys) == cells


def row(part: str, label: str, column: str, sa: float, attackers: int) -> dict[str, Any]:
    return {
        "part": part,
        "row": label,
        "column": column,
        "sa": sa,
        "ra": 0.5,
        "worst_sa": 0.25,
        "last_round": 3,
        "attack": "pgd-3",
        "eps": 8 / 255,
        "attackers": ["c"] * attackers,
    }


DECLARED = {
    "title": "T",
    "note": "N",
    "honest_rounds": 1,
    "settings": {"model": {"width": 0.5}},
    "parts": [
        {
            "title": "P",
            "rounds": 3,
            "rows": [{"label": "no attack"}, {"label": "flip"}],
            "columns": [{"label": "mean"}, {"label": "median"}, {"label": "krum"}],
        }
    ],
}
ROWS = [
    *(row("P", "no attack", column, 0.9, 0) for column in ("mean", "median", "krum")),
    row("P", "flip", "mean", 0.1, 2),
    row("P", "flip", "median", 0.85, 2),
    {**row("P", "flip", "krum", 0.6, 2), "last_round": 2},
]


def test_the_table(script: ModuleType) -> None:
    lines = script.markdown(DECLARED, ROWS, "command", 1).splitlines()
    assert "| flip | 10.0 / 50.0 (25) | 85.0 / 50.0 (25) | 60.0 / 50.0 (25) † |" in lines
    assert "Scale: model.width = 0.5." in lines
