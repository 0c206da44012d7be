"""`flwr run` in simulation: Flower's own engine, its worker processes, and the weights of the embedded run."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

import fedrbn
from fedrbn.deploy.processes import Running, launch, stop
from fedrbn.flower.log import events

from .small import experiment, last, run_config
from .test_in_process import assert_same

APP = Path(__file__).parents[2] / "flower"
BIN = Path(sys.executable).parent


@pytest.fixture(scope="module")
def simulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A SuperLink that simulates nodes, with a home of its own; yields the environment to talk to it."""
    home = tmp_path_factory.mktemp("flwr")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = os.environ | {
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(APP.parent / "src"),
        "FLWR_HOME": str(home),
        "FEDRBN_STATE": str(home / "state"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "OMP_NUM_THREADS": "1",
    }
    (home / "config.toml").write_text(f'[superlink.sim]\naddress = "127.0.0.1:{port}"\ninsecure = true\n')
    command = [str(BIN / "flower-superlink"), "--insecure", "--simulation", "--host", "127.0.0.1", "--port", str(port)]
    running = launch("superlink", command, home / "superlink.log", environment)
    try:
        _wait_for(f"http://127.0.0.1:{port}/health", running)
        yield environment
    finally:
        stop([running])


def _wait_for(url: str, running: Running) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end and running.alive():
        try:
            with urllib.request.urlopen(url, timeout=2):  # noqa: S310  (our own process)
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise AssertionError(running.tail())


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedrbn", "fatavg"])
def test_simulation_gives_the_weights_of_the_embedded_run(
    method: str, simulator: dict[str, str], tmp_path: Path
) -> None:
    chosen = experiment(method={"name": method})
    fedrbn.run(chosen, tmp_path / "embedded")
    given = run_config(tmp_path, "flower", chosen, wait=200.0, poll=0.1)
    words = [f'{key}="{value}"' if isinstance(value, str) else f"{key}={value}" for key, value in given.items()]
    nodes = "num-supernodes=4 client-resources-num-cpus=1 client-resources-num-gpus=0.0 init-args-num-cpus=2"
    command = [BIN / "flwr", "run", APP, "sim", "--stream", "--run-config", " ".join(words)]
    done = subprocess.run(
        [*command, "--federation-config", nodes],
        env=simulator,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    log = tmp_path / "flower" / "events.jsonl"
    assert events(log, "finished"), done.stdout + done.stderr
    trained = events(log, "train")
    assert [len(event["clients"]) for event in trained] == [4, 4, 4], "a run that says completed may lack answers"
    assert_same(last(tmp_path / "flower"), last(tmp_path / "embedded"))
