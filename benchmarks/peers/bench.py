"""`make bench-peers`: the same FedAvg and FedBN rounds in plain PyTorch, Flower's simulation, pfl-research and fedrbn.

Five domains of 743 digits each (real ones if FEDRBN_DATA names them, else as many as digits-mini has), the paper's
network with 14.2 M parameters, batch 32, learning rate 0.01, one local epoch, float32, one thread per process. All have
the same initial weights and the same order of batches, so their accuracies must agree. CPU seconds are the sum over all
processes of a contender, per round after the first (warm-up); memory is the largest sum of proportional set sizes
(shared pages count once). Contenders run one after another. Linux only. Writes benchmarks/peers.json after each
contender, so that results are kept; --only measures only the named ones again.

    python benchmarks/peers/bench.py PYTHON_OF_THE_PEERS [--rounds 2] [--only ours,plain] [--small]
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1]))
import workload
from measuring import Row, family_cpu_seconds, show
from ours import SEED, names

from fedrbn.config import DataConfig, FederationConfig
from fedrbn.data.federation import build as build_federation
from fedrbn.deploy.processes import family
from fedrbn.federated.assemble import load_data
from fedrbn.federated.client import batches, steps_per_epoch
from fedrbn.nets import build
from fedrbn.randomness import generator

HERE = Path(__file__).parent
IMAGES, TEST = 743, 300
CONTENDERS = {
    "ours": "fedrbn",
    "plain": "plain PyTorch",
    "flower_simulation": "Flower's simulation",
    "pfl_research": "pfl-research",
}
METHODS = ("fedbn", "fedavg")
PUBLISHED = 24.0
"""Core-seconds per round of Flower's FedBN baseline: "under 5 minutes" for 100 rounds on 8 cores, 300 · 8 / 100."""
RESULT = HERE.parent / "peers.json"


def make_work(path: Path, rounds: int, width: float, images: int) -> dict[str, Any]:
    """Write the work of all contenders; returns its description."""
    name = "digits" if os.environ.get("FEDRBN_DATA") else "digits-mini"
    config = FederationConfig(users_per_domain=1, fraction=1.0, at=0.0, validation=0.0, test_samples=TEST)
    clients = build_federation(load_data(DataConfig(name=name)), config, SEED).clients
    tensors: dict[str, Tensor] = {}
    ids = names(len(clients))
    for d, client in enumerate(clients):
        own, test = client.train.first(images), client.test
        tensors |= {f"images/{d}": own.images, f"labels/{d}": own.labels}
        tensors |= {f"test_images/{d}": test.images, f"test_labels/{d}": test.labels}
        for r in range(rounds):
            random = generator(SEED, "round", r, "client", ids[d], "batches")  # as in `federated.client`
            steps = steps_per_epoch(len(own), workload.BATCH)
            tensors[f"order/{r}/{d}"] = torch.cat(list(batches(len(own), workload.BATCH, steps, random)))
    net = build("digits", 10, width, (3, 28, 28), seed=SEED)
    tensors |= {f"initial/{key}": tensor for key, tensor in net.state_dict().items()}
    workload.write(path, tensors, width)
    sizes = [len(tensors[f"labels/{d}"]) for d in range(len(clients))]
    return {
        "data": name,
        "images": sizes,
        "test images": [len(client.test) for client in clients],
        "parameters": sum(p.numel() for p in net.parameters()),
        "seed": SEED,
        "rounds": rounds - 1,
    }


class Memory(threading.Thread):
    """The largest sum of proportional set sizes of a process and its descendants, in bytes."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.pid = pid
        self.peak = 0
        self.over = threading.Event()

    def run(self) -> None:
        """Poll from time to time."""
        while not self.over.wait(1.0):
            self.peak = max(self.peak, sum(_proportional(member.pid) for member in family(self.pid)))


def _proportional(pid: int) -> int:
    with contextlib.suppress(OSError):  # it has ended in the meantime
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def contest(python: str, contender: str, method: str, work: Path) -> dict[str, Any]:
    """One contender's rounds: CPU seconds of each after the first, peak memory, SA of the result."""
    out = work.with_name(f"{contender}-{method}.safetensors")
    source = HERE.parents[1] / "src"
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(source), str(HERE)]),
        "PEERS_WORK": str(work),
        "OMP_NUM_THREADS": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_HOME": str(work.parent / "flwr"),
    }
    command = [python, str(HERE / "contend.py"), contender, method, str(work), str(out)]
    log = work.with_name(f"{contender}-{method}.log")
    with log.open("w") as errors:
        process = subprocess.Popen(  # noqa: S603
            command, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True
        )
    memory = Memory(process.pid)
    memory.start()
    readings = [family_cpu_seconds(process.pid) for line in process.stdout if line.strip() == "round"]
    memory.over.set()
    if process.wait() or not out.exists():
        said = log.read_text(encoding="utf-8")
        print(f"{contender} failed in {method}; the end of its output:\n{said[-3000:]}", file=sys.stderr)
        causes = [line.strip() for line in said.splitlines() if "Exception: " in line or "Error: " in line]
        return {"failed": causes[0] if causes else f"exit code {process.returncode}"}
    known = workload.read(work)
    found = load_file(out)
    states = [
        {name.partition("/")[2]: t for name, t in found.items() if name.startswith(f"{d}/")}
        for d in range(len(known.images))
    ]
    return {
        "cpu": statistics.median(b - a for a, b in itertools.pairwise(readings)),
        "memory": memory.peak,
        "sa": workload.accuracy(known, states),
    }


def rows(found: dict[str, dict[str, dict[str, Any]]]) -> list[Row]:
    """The measured figures and their targets."""
    made = []
    for method, measured in found.items():
        by_name = {name: result for name, result in measured.items() if "failed" not in result}
        label = {"fedbn": "FedBN", "fedavg": "FedAvg"}[method]
        made += [Row(f"{label}, {CONTENDERS[n]}: CPU seconds per round", r["cpu"], "s") for n, r in by_name.items()]
        made += [Row(f"{label}, {CONTENDERS[n]}: peak memory", r["memory"] / 2**30, "GiB") for n, r in by_name.items()]
        made += [Row(f"{label}, {CONTENDERS[n]}: SA", 100 * r["sa"], "%") for n, r in by_name.items()]
        peers = [r["cpu"] for n, r in by_name.items() if n != "ours"]
        if "ours" in by_name and peers:
            share = by_name["ours"]["cpu"] / min(peers)
            made.append(Row(f"{label}: our CPU seconds, share of the best peer's", share, "", 0.5, "less"))
            spread = 100 * (max(r["sa"] for r in by_name.values()) - min(r["sa"] for r in by_name.values()))
            made.append(Row(f"{label}: largest difference of SA, in points", spread, "", 1.0, "less"))
        if method == "fedbn" and "ours" in by_name:
            text = "FedBN: our core-seconds per round, Flower's published baseline beside it"
            made.append(Row(text, by_name["ours"]["cpu"], "s", PUBLISHED, "less"))
    return made


def failures(found: dict[str, dict[str, dict[str, Any]]]) -> list[str]:
    """Which contenders could not be measured, and their errors."""
    return [
        f"{method}, {CONTENDERS[name]}: not measured: {result['failed']}"
        for method, by_name in found.items()
        for name, result in by_name.items()
        if "failed" in result
    ]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("python", help="the interpreter of the peers' environment")
    parser.add_argument("--rounds", type=int, default=2, help="measured rounds, after one warm-up round")
    parser.add_argument("--only", default=",".join(CONTENDERS))
    parser.add_argument("--small", action="store_true", help="a tiny network and few images, to check that it works")
    options = parser.parse_args()
    torch.set_num_threads(1)
    result = Path(tempfile.gettempdir()) / "peers-small.json" if options.small else RESULT
    found: dict[str, dict[str, dict[str, Any]]] = {method: {} for method in METHODS}
    if result.exists():
        found |= json.loads(result.read_text(encoding="utf-8"))["contenders"]
    with tempfile.TemporaryDirectory(prefix="peers-") as folder:
        work = Path(folder) / "work.safetensors"
        what = make_work(work, options.rounds + 1, *((1 / 16, 70) if options.small else (1.0, IMAGES)))
        for method in METHODS:
            for contender in options.only.split(","):
                python = sys.executable if contender == "ours" else options.python
                found[method][contender] = contest(python, contender, method, work)
                title = f"Peers ({what['data']}, {what['images']} images, {what['parameters']:,} parameters)"
                failed = failures(found)
                versions = _versions(options.python)
                show(title, rows(found), result, failed=failed, work=what, contenders=found, versions=versions)
                print(*failed, sep="\n")
    sys.exit(bool(failures(found)))


def _versions(python: str) -> dict[str, str]:
    code = "import importlib.metadata as m; print(*(m.version(p) for p in ('torch', 'flwr', 'pfl')))"
    told = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.split()  # noqa: S603
    return dict(zip(("torch", "flwr", "pfl"), told, strict=True)) | {"fedrbn": importlib.metadata.version("fedrbn")}


if __name__ == "__main__":
    main()
