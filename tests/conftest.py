"""Tiny experiments that train in seconds, and one trained run that many tests look at but never change."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fedrbn
from fedrbn import config
from fedrbn.config import Experiment
from fedrbn.hardware import bfloat16_gain

TINY: dict[str, dict[str, Any]] = {
    "federation": {"users_per_domain": 2, "at": 0.5, "fraction": 0.03, "test_samples": 8},
    "model": {"width": 1 / 16},
    "train": {"rounds": 4, "validate_every": 2, "lr": 0.05},
    "attack": {"steps": 2},
    "run": {"workers": 1},
}
"""Ten users with 15 training images each: a round is one step per user."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test that hangs fails and says where, instead of ending the whole run.

    This is not in pyproject.toml, where it would also apply to the tests that users write in this folder, whose pytest
    need not have the plugin for it.
    """
    for item in items:
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(600))


@pytest.fixture
def bfloat16() -> None:
    """For a test that computes in bfloat16: where that does not work, PyTorch's later products may fail as well."""
    if bfloat16_gain() == 0:
        pytest.skip("this processor has no bfloat16 instructions that work")


@pytest.fixture(scope="session")
def tiny() -> Callable[..., Experiment]:
    """Makes a tiny experiment; keywords such as train={"rounds": 1} go on top."""

    def make(**sections: dict[str, Any]) -> Experiment:
        settings = [(section, key, value) for section, given in sections.items() for key, value in given.items()]
        return config.make(config.with_settings(TINY, settings))

    return make


@pytest.fixture(scope="session")
def tiny_options() -> list[str]:
    """The same experiment as options of the command line, but for the number of rounds."""
    return [
        option
        for section, given in TINY.items()
        for key, value in given.items()
        if key != "rounds"
        for option in ("--set", f"{section}.{key}={value}")
    ]


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory, tiny: Callable[..., Experiment]) -> Path:
    """A finished run of four rounds, never interrupted. Do not write into it."""
    path = tmp_path_factory.mktemp("runs") / "trained"
    fedrbn.run(tiny(), path)
    return path
