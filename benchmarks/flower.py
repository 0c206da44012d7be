"""The cost of Flower: seconds and bytes per round, in one process, as simulation and as deployment, for the same work.

Four clients (1 AT, 3 ST) of digits-mini train FedRBN for a few rounds; the resulting weights are the same everywhere.
The embedded run is the reference. Everything runs on this machine, with one thread per process. CPU seconds are the sum
over all processes and hardly depend on other load; wall-clock seconds do. Linux only, because CPU seconds of other
processes are read from /proc. Writes benchmarks/flower.json.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

import fedrbn
from fedrbn import config
from fedrbn.config import Experiment
from fedrbn.deploy import processes
from fedrbn.deploy.fleet import fleet, free_ports, local_plan
from fedrbn.deploy.site import create
from fedrbn.flower.client_app import app
from fedrbn.flower.log import events
from fedrbn.flower.serving import serve
from fedrbn.runs.directory import RunDirectory

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from measuring import family_cpu_seconds

from flower.in_process import InProcessGrid

ROUNDS, CLIENTS = 3, 4
APP = Path(__file__).parents[1] / "flower"
VALUES: dict[str, dict[str, Any]] = {
    "data": {"domains": ["plain", "pen", "texture", "street"]},
    "federation": {"users_per_domain": 1, "at": ["plain-0"], "fraction": 0.25, "validation": 0.0, "test_samples": 50},
    "train": {"rounds": ROUNDS, "lr": 0.05},
    "run": {"workers": 1},
}


def experiment(**train: Any) -> Experiment:
    """The work; keywords change [train]."""
    return config.make(config.with_settings(VALUES, [("train", key, value) for key, value in train.items()]))


def in_process(folder: Path, transport: str = "float32", **train: Any) -> Path:
    """Flower's messages, serialised and read again, but no sockets and no processes."""
    name = f"in-process-{transport}-{train.get('rounds', ROUNDS)}"
    file = folder / f"{name}.toml"
    file.write_text(experiment(**train).to_toml(), encoding="utf-8")
    state = str(folder / name / "state")
    grid = InProcessGrid(app, {1000 + i: {"partition-id": i, "state": state} for i in range(CLIENTS)})
    settings = {"config": str(file), "nodes": CLIENTS, "poll": 0.01, "transport": transport}
    with contextlib.redirect_stdout(io.StringIO()):  # the server also prints its events there
        serve(grid, {"run.out": str(folder / name / "run"), **{f"flower.{k}": v for k, v in settings.items()}})
    return folder / name / "run"


def simulation(folder: Path) -> None:
    """Flower's simulation: clients in Ray's worker processes, which stay alive between rounds."""
    home, (port,) = folder / "flwr", free_ports(1)
    home.mkdir()
    (home / "config.toml").write_text(
        f'[superlink.here]\naddress = "127.0.0.1:{port}"\ninsecure = true\n', encoding="utf-8"
    )
    (folder / "simulation.toml").write_text(experiment().to_toml(), encoding="utf-8")
    scripts = sysconfig.get_path("scripts")
    environment = {
        **os.environ,
        "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}",
        "FLWR_HOME": str(home),
        "FEDRBN_STATE": str(folder / "state"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    }
    command = [f"{scripts}/flower-superlink", "--insecure", "--simulation", "--port", str(port)]
    out = folder / "simulation"
    values = f'run.out="{out}" flower.config="{folder}/simulation.toml" flower.nodes={CLIENTS}'
    superlink = processes.launch("superlink", command, folder / "superlink.log", environment)
    try:
        _until(lambda: "Uvicorn running" in superlink.tail(50), 120)
        size = f"num-supernodes={CLIENTS} client-resources-num-cpus=1"
        submit = [f"{scripts}/flwr", "run", str(APP), "here", "--run-config", values, "--federation-config", size]
        subprocess.run(submit, env=environment, check=True, stdout=subprocess.DEVNULL)  # noqa: S603
        _until(lambda: "Finished task" in superlink.tail(50), 900)
        if not RunDirectory(out).records("evaluations.jsonl"):
            raise RuntimeError("the simulation failed; on a busy machine Ray may not have started in time.")
    finally:
        processes.stop([superlink])


def deployment(folder: Path) -> None:
    """Real processes, TLS, authenticated nodes."""
    site = create(folder / "site", local_plan(experiment(), CLIENTS))
    with fleet(site, folder / "logs") as started:
        started.start_superlink()
        started.register()
        for name in site.names:
            started.start_node(name)
        if started.wait(started.submit_experiment("run", experiment()), 1800) != "finished:completed":
            raise RuntimeError(f"the deployment failed; the end of its log:\n{started.running['superlink'].tail()}")


class Meter(threading.Thread):
    """Records the CPU seconds of this process and its descendants whenever a run finishes a round."""

    def __init__(self, path: Path) -> None:
        super().__init__(daemon=True)
        self.path = path
        self.readings: list[float] = []
        self.over = threading.Event()

    def run(self) -> None:
        """Poll the run's records until it ends."""
        while not self.over.wait(0.05):
            if len(RunDirectory(self.path).records("rounds.jsonl")) > len(self.readings):
                self.readings.append(family_cpu_seconds(os.getpid()))

    @property
    def per_round(self) -> float:
        """CPU seconds of a round after the first."""
        return (self.readings[-1] - self.readings[0]) / (len(self.readings) - 1)


def metered(path: Path, action: Callable[[], object]) -> dict[str, float]:
    """Do a run and measure it."""
    meter = Meter(path)
    meter.start()
    try:
        action()
    finally:
        meter.over.set()
        meter.join()
    return {"cpu": meter.per_round, **measured(path)}


def _until(condition: Callable[[], object], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise RuntimeError(f"the condition was not met within {seconds:g} s")
        time.sleep(0.2)


def measured(path: Path) -> dict[str, float]:
    """Seconds per round after the first (warm-up), the clients' training time in it, and bytes in both directions."""
    records = RunDirectory(path).records("rounds.jsonl")[1:]
    letters = events(path / "events.jsonl", "train")[1:]
    found = {
        "seconds": statistics.median(record["seconds"] for record in records),
        "training": statistics.median(sum(c["seconds"] for c in record["clients"].values()) for record in records),
    }
    if letters:
        found["down"] = statistics.median(event["down"] for event in letters)
        found["up"] = statistics.median(event["up"] for event in letters)
    return found


def process_start() -> float:
    """CPU seconds that a new client process needs before it can start: to import PyTorch, Flower and fedrbn."""
    code = "import flwr.supernode.runtime.run_clientapp, fedrbn.flower.client_app"
    before = os.times()
    subprocess.run([sys.executable, "-c", code], check=True)  # noqa: S603
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def forked_start() -> float:
    """The same for a node's job, a fork of a process that has already imported them."""
    command = [sys.executable, "-c", "import forked; forked.main()"]
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(  # noqa: S603
        command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=True
    )
    return float(done.stdout)


def accuracy(path: Path) -> dict[str, float]:
    """SA and RA of a run."""
    mean = RunDirectory(path).records("evaluations.jsonl")[0]["mean"]
    return {"sa": mean["sa"], "ra": mean["ra"]}


def main() -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="fedrbn-bench-") as name:
        folder = Path(name)
        rows = {
            "embedded": metered(folder / "embedded", lambda: fedrbn.run(experiment(), folder / "embedded")),
            "in one process": metered(folder / f"in-process-float32-{ROUNDS}" / "run", lambda: in_process(folder)),
            "simulation": metered(folder / "simulation", lambda: simulation(folder)),
            "deployment": metered(folder / "site" / "server" / "run", lambda: deployment(folder)),
        }
        longer = {transport: in_process(folder, transport, rounds=12) for transport in ("float32", "bfloat16")}
        transports = {
            transport: {**{k: v for k, v in measured(path).items() if k in ("down", "up")}, **accuracy(path)}
            for transport, path in longer.items()
        }
    result = {
        "versions": {package: version(package) for package in ("fedrbn", "torch", "flwr")},
        "cores": len(os.sched_getaffinity(0)),
        "load": os.getloadavg()[0],
        "seed": 1,
        "rows": rows,
        "process start, CPU seconds": process_start(),
        "forked start, CPU seconds": forked_start(),
        "transport, 12 rounds": transports,
    }
    show(result)
    Path(__file__).with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n")


def show(result: dict[str, Any]) -> None:
    """The result as two tables and where the time goes."""
    yardstick = result["rows"]["embedded"]
    print(f"{'per round':>16} {'CPU s':>6} {'ratio':>6} {'clock s':>8} {'training s':>11} {'down kB':>8} {'up kB':>7}")
    for name, row in result["rows"].items():
        sent = f"{row['down'] / 1e3:>8.0f} {row['up'] / 1e3:>7.0f}" if "down" in row else ""
        ratio = row["cpu"] / yardstick["cpu"]
        print(f"{name:>16} {row['cpu']:>6.1f} {ratio:>6.2f} {row['seconds']:>8.1f} {row['training']:>11.1f} {sent}")
    forked, fresh = result["forked start, CPU seconds"], result["process start, CPU seconds"]
    print(f"A deployment starts a process for each client and round: {forked:.2f} s CPU as a fork with everything")
    print(f"imported ({fresh:.1f} s as a new process). Nodes poll for work every 3 s.")
    print(f"{result['cores']} cores, load {result['load']:.1f}.")
    print(f"{'θ as':>16} {'down kB':>8} {'up kB':>7} {'SA':>6} {'RA':>6}   (12 rounds)")
    for name, row in result["transport, 12 rounds"].items():
        print(f"{name:>16} {row['down'] / 1e3:>8.0f} {row['up'] / 1e3:>7.0f} {row['sa']:>6.1%} {row['ra']:>6.1%}")


if __name__ == "__main__":
    main()
