"""What `import fedrbn` promises. Changing this list is an entry in the changelog."""

from __future__ import annotations

import subprocess
import sys

import pytest

import fedrbn

NAMES = [
    "Branch",
    "DataSet",
    "Domain",
    "DualNet",
    "Experiment",
    "Method",
    "PGD",
    "Role",
    "Samples",
    "Stats",
    "Trained",
    "dual",
    "evaluate",
    "federate",
    "load",
    "make",
    "plain",
    "resume",
    "run",
    "single",
]


def test_public_names() -> None:
    assert fedrbn.__all__ == NAMES
    assert dir(fedrbn) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_is_there_and_explained(name: str) -> None:
    assert getattr(fedrbn, name).__doc__


def test_other_names_are_not() -> None:
    with pytest.raises(AttributeError, match="module 'fedrbn' has no attribute 'laod'"):
        fedrbn.laod  # noqa: B018


def test_importing_the_package_does_not_import_torch() -> None:
    code = "import sys, fedrbn, fedrbn.config, fedrbn.types, fedrbn.data; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
