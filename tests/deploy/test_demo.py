"""The demonstration ends what it started, also when it is interrupted."""

from __future__ import annotations

import os
import signal
import sysconfig
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedrbn.cli import app
from fedrbn.deploy.processes import alive, family, launch, stop
from fedrbn.errors import DeployError

EXPERIMENT = "flower-demo"


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demonstration_leaves_no_process_and_no_key(tmp_path: Path, number: signal.Signals) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    command = [f"{sysconfig.get_path('scripts')}/fedrbn", "deploy", "demo", EXPERIMENT, "--out", f"{tmp_path}/out"]
    demo = launch("demo", command, tmp_path / "demo.log", {**os.environ, "TMPDIR": str(temporary)})
    try:
        log, deadline = tmp_path / "out" / "logs" / "superlink.log", time.monotonic() + 300
        while not (log.exists() and "Uvicorn running" in log.read_text()):
            assert demo.alive(), demo.tail()
            assert time.monotonic() < deadline, demo.tail()
            time.sleep(0.2)
        assert [path.suffix for path in temporary.rglob("ca.key")] == [".key"]
        members = family(demo.pid)
        assert len(members) >= 3  # the command, the SuperLink, and what the SuperLink has started
        os.kill(demo.pid, number)
        assert demo.process.wait(120) != 0
    finally:
        stop([demo])
    assert alive(members) == set()
    assert list(temporary.iterdir()) == []


def test_a_folder_that_is_in_use_is_refused(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("something")
    refused = CliRunner().invoke(app, ["deploy", "demo", EXPERIMENT, "--out", str(tmp_path)])
    assert isinstance(refused.exception, DeployError)
    assert "expected a new directory" in str(refused.exception)
