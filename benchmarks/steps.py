"""Seconds of CPU per training step, ours against the plain loop in reference.py, as ratios in one run on one thread.

Ours and the reference take turns, so that a busy machine slows both. Writes benchmarks/steps.json.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from reference import Reference

from fedrbn import PGD, dual
from fedrbn.federated.objectives import Adversarial, Calibrated, Objective, Standard
from fedrbn.nets import build

BATCH, REPEATS = 32, 5


def ours(objective: Objective, width: float, x: torch.Tensor, y: torch.Tensor) -> Callable[[], object]:
    """One optimizer step of an objective of the package."""
    net = dual(build("digits", 10, width, (3, 28, 28), seed=1)).train()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(1)

    def step() -> None:
        optimizer.zero_grad()
        objective(net, x, y, generator)
        optimizer.step()

    return step


def plain_loop(kind: str, width: float, x: torch.Tensor, y: torch.Tensor) -> Callable[[], object]:
    """One optimizer step of the reference."""
    nets = [build("digits", 10, width, (3, 28, 28), seed=1) for _ in range(2)]
    reference = Reference(*nets, lr=0.01)
    generator = torch.Generator().manual_seed(1)
    return {
        "ST": lambda: reference.standard(x, y),
        "AT": lambda: reference.adversarial(x, y, generator),
        "PNC": lambda: reference.calibrated(x, y, 0.5),
    }[kind]


def seconds(action: Callable[[], object]) -> float:
    """CPU seconds of one call."""
    started = time.process_time()
    action()
    return time.process_time() - started


def main() -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    x = torch.rand(BATCH, 3, 28, 28, generator=torch.Generator().manual_seed(1))
    y = torch.arange(BATCH) % 10
    objectives: dict[str, Objective] = {
        "ST": Standard(),
        "PNC": Calibrated(0.5),
        "AT": Adversarial(PGD()),
    }
    rows = []
    for width in (0.25, 1.0):
        for kind, objective in objectives.items():
            pair = (plain_loop(kind, width, x, y), ours(objective, width, x, y))
            times = [[seconds(action) for action in pair] for _ in range(REPEATS + 1)][1:]
            plain, fast = (statistics.median(column) for column in zip(*times, strict=True))
            rows.append({"step": kind, "width": width, "plain_ms": 1e3 * plain, "ours_ms": 1e3 * fast})
    print(f"{'step':>5} {'width':>6} {'plain loop':>11} {'ours':>9} {'ratio':>6}   (ms CPU, batch {BATCH}, one thread)")
    for row in rows:
        ratio = row["plain_ms"] / row["ours_ms"]
        print(f"{row['step']:>5} {row['width']:>6} {row['plain_ms']:>11.1f} {row['ours_ms']:>9.1f} {ratio:>6.2f}")
    path = Path(__file__).with_suffix(".json")
    path.write_text(json.dumps({"torch": torch.__version__, "batch": BATCH, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
