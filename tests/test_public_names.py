"""What `import fedrbn` promises. Changing this list is an entry in the changelog."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import fedrbn

NAMES = [
    "Branch",
    "DataSet",
    "Domain",
    "DualNet",
    "Evaluation",
    "EvaluationSettings",
    "Experiment",
    "Method",
    "MethodComparison",
    "PGD",
    "Role",
    "Samples",
    "Stats",
    "Trained",
    "compare",
    "count_cost",
    "dual",
    "evaluate",
    "export_client",
    "federate",
    "load",
    "make",
    "onboard",
    "open_model",
    "plain",
    "plan_fleet",
    "predict",
    "read_settings",
    "reproduce_experiment",
    "resume",
    "run",
    "single",
    "write_report",
]


def test_public_names() -> None:
    assert fedrbn.__all__ == NAMES
    assert dir(fedrbn) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_is_there_and_explained(name: str) -> None:
    assert getattr(fedrbn, name).__doc__


def test_the_version_is_that_of_the_package() -> None:
    """pyproject.toml takes it from here, so it is written once."""
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
    assert "version" in project["project"]["dynamic"]
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "fedrbn.__version__"}
    assert re.fullmatch(r"\d+\.\d+\.\d+", fedrbn.__version__)


def test_other_names_are_not() -> None:
    with pytest.raises(AttributeError, match="module 'fedrbn' has no attribute 'laod'"):
        fedrbn.laod  # noqa: B018


def test_importing_the_package_does_not_import_torch() -> None:
    code = "import sys, fedrbn, fedrbn.config, fedrbn.types, fedrbn.data; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
