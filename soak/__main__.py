"""`python -m soak`: tries every fault and writes `results/reliability/faults.json`; see docs/reliability.md."""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch

from fedrbn.federated.assemble import load_data
from soak import clients, deployed, disks, kills
from soak.setting import Row, experiment

RESULTS = Path(__file__).parent.parent / "results" / "reliability"


def main() -> None:
    """Try all faults; the first loss ends it with an error."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--share", type=float, default=1.0, help="fraction of all tries, for a quick check")
    parser.add_argument("--out", type=Path, default=RESULTS / "faults.json")
    options = parser.parse_args()
    torch.set_num_threads(1)  # children are forked, so this process must not have started threads
    random = np.random.default_rng(options.seed)
    started = time.perf_counter()
    rows: list[Row] = []

    def add(*found: Row) -> None:
        for row in found:
            print(f"{time.perf_counter() - started:7.0f} s  {row.fault}: {row.tried} times, {row.happened}", flush=True)
        rows.extend(found)

    def tries(number: int) -> int:
        return max(1, round(float(options.share) * number))

    with tempfile.TemporaryDirectory(prefix="fedrbn-soak-") as name:
        folder = Path(name)
        data = load_data(experiment().data)
        add(kills.of_the_whole_group(folder / "group", tries(4), random))
        add(kills.at_random_moments(folder / "moments", data, tries(50), random))
        add(kills.at_every_step_of_writing(folder / "steps", data, tries(100), random))
        add(kills.by_another_creator(folder / "creators", data, tries(20)))
        add(*disks.rows(folder / "disks", data, tries(10), random))
        # From here on, this process trains itself and has threads: no more forks.
        add(*clients.rows(data, tries(25), tries(6), random))
        add(*deployed.rows(folder / "deployed", tries(3), random))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "made_by": "make soak",
        "section": "Faults",
        "seed": options.seed,
        "share": options.share,
        "seconds": round(time.perf_counter() - started),
        "processor_seconds": round(sum(os.times()[:4])),
        "scale": "digits-mini, 10 users with 15 images each, width 1/16, 3 rounds, PGD-2",
        "versions": {package: version(package) for package in ("fedrbn", "torch")}
        | {"python": platform.python_version()},
        "rows": [asdict(row) for row in rows],
    }
    options.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
