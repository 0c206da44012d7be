"""register.sh with a real SuperLink that is not ready yet, or never."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedrbn import config
from fedrbn.deploy.fleet import RunningFleet, fleet, local_plan
from fedrbn.deploy.site import create

pytestmark = pytest.mark.slow


@pytest.fixture
def stopped(tmp_path: Path) -> Iterator[RunningFleet]:
    """A site with one node, of which nothing runs yet."""
    plan = local_plan(config.make({"data": {"domains": ["plain"]}}), 1)
    with fleet(create(tmp_path / "site", plan), tmp_path / "logs") as found:
        yield found


def test_register_waits_until_the_superlink_answers(stopped: RunningFleet) -> None:
    server = stopped.site.root / "server"
    with subprocess.Popen(
        ["sh", "register.sh"], cwd=server, env={**os.environ, **stopped.environment}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as registering:  # fmt: skip
        assert registering.stderr is not None
        assert registering.stderr.readline() == "waiting for the SuperLink\n"
        stopped.start_superlink()
        told, errors = registering.communicate(timeout=300)
    assert (registering.returncode, told) == (0, "node-0: registered\n"), errors
