"""How well `fedrbn run` estimates its own memory: estimated over measured bytes, for networks of several sizes.

The estimate is what the overview before a run prints. Measured are the resident bytes of all processes of
the run at their largest; shared memory and program files, which the processes have in common, count once (Linux only).
Writes memory.json.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing as mp
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from measuring import Row, show

import fedrbn
from fedrbn.config import Experiment
from fedrbn.data.samples import DataSet, Domain, Samples
from fedrbn.deploy.processes import family
from fedrbn.federated import memory_need
from fedrbn.federated.assemble import assemble

CASES: dict[str, tuple[int, int, dict[str, Any], int]] = {
    "digits network, 28 px, 1 worker": (28, 32, {"name": "digits", "width": 1.0}, 1),
    "digits network, 28 px, 2 workers": (28, 32, {"name": "digits", "width": 1.0}, 2),
    "resnet18 of width 1/4, 64 px, 2 workers": (64, 16, {"name": "resnet18", "width": 0.25}, 2),
    "resnet18, 64 px, 1 worker": (64, 16, {"name": "resnet18", "width": 1.0}, 1),
    "resnet18, 64 px, 2 workers": (64, 16, {"name": "resnet18", "width": 1.0}, 2),
    "alexnet, 128 px, 1 worker": (128, 16, {"name": "alexnet", "width": 1.0}, 1),
    "pytorchcv resnet10, 224 px, 1 worker": (224, 16, {"name": "pytorchcv.models.resnet:resnet10"}, 1),
}
"""Side of the images, images per step, network, workers."""


def experiment(batch: int, model: dict[str, Any], workers: int) -> Experiment:
    """Two rounds of a few steps; the attack is short, because its length does not change what it needs."""
    return fedrbn.make(
        {
            "federation": {"users_per_domain": 2, "at": 0.5, "fraction": 1.0, "validation": 0.2},
            "model": model,
            "method": {"clip": 10.0},
            "train": {"rounds": 2, "batch_size": batch, "validate_every": 2, "lr": 0.01},
            "attack": {"steps": 1},
            "run": {"workers": workers},
        }
    )


def images(side: int) -> DataSet:
    """Noise, of two domains."""
    random = torch.Generator().manual_seed(1)

    def samples(count: int) -> Samples:
        pixels = torch.randint(0, 256, (count, 3, side, side), generator=random, dtype=torch.uint8)
        return Samples(pixels, torch.arange(count) % 4)

    return DataSet("noise", tuple(Domain(n, samples(100), samples(60), n) for n in ("a", "b")), tuple("wxyz"))


def train(side: int, batch: int, model: dict[str, Any], workers: int) -> None:
    """The run, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        fedrbn.run(experiment(batch, model, workers), Path(folder) / "run", data=images(side))


def expected(line: Any, side: int, batch: int, model: dict[str, Any], workers: int) -> None:
    """What the overview says, in a process of its own too."""
    assembly = assemble(experiment(batch, model, workers), data=images(side))
    needed = memory_need.of_run(assembly.net, assembly.federation, batch, workers)
    line.send((needed.total, str(needed)))


def measured(*case: Any) -> int:
    """The most bytes that the processes of the run had together, looked at twenty times a second."""
    process = mp.get_context("spawn").Process(target=train, args=case)
    process.start()
    largest = 0
    while process.is_alive():
        sizes = [resident(member.pid) for member in family(process.pid or 0)]
        if sizes:
            private, shared, files = zip(*sizes, strict=True)
            largest = max(largest, sum(private) + max(shared) + max(files))
        time.sleep(0.05)
    if process.exitcode:
        raise SystemExit(f"the run of {case} failed")
    return largest


def resident(pid: int) -> tuple[int, int, int]:
    """Bytes of a process in memory: its own, those that it shares with others, and those of program files."""
    with contextlib.suppress(OSError):  # it has ended meanwhile
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
        found = {line.split()[0]: int(line.split()[1]) * 1024 for line in lines if line.startswith("Rss")}
        if found:
            return found["RssAnon:"], found["RssShmem:"], found["RssFile:"]
    return 0, 0, 0


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*", help="only cases whose name has one of these")
    words = parser.parse_args().words
    rows = []
    for name, case in CASES.items():
        if words and not any(word in name for word in words):
            continue
        line, theirs = mp.get_context("spawn").Pipe()
        asked = mp.get_context("spawn").Process(target=expected, args=(theirs, *case))
        asked.start()
        guess, parts = line.recv()
        asked.join()
        found = measured(*case)
        print(f"{name}: estimated {guess / 2**20:.0f} MiB, measured {found / 2**20:.0f} MiB; {parts}", flush=True)
        rows += [
            Row(f"{name}, estimated over measured, lower bound", guess / found, "x", 0.77),
            Row(f"{name}, estimated over measured, upper bound", guess / found, "x", 1.3, "less"),
        ]
    show("Memory estimated before a run", rows, Path(__file__).with_suffix(".json"))


if __name__ == "__main__":
    main()
