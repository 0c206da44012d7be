"""`python -m soak.network`: a fleet on a bad network; writes `results/reliability/network.json`."""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import tempfile
import time
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

import torch

from soak.network import scenario
from soak.network.namespaces import impossible, network

RESULTS = Path(__file__).parents[2] / "results" / "reliability"


def main() -> None:
    """Try all faults, or say why that is not possible here; the first loss ends it with an error."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--nodes", type=int, default=16, help="a multiple of 4")
    parser.add_argument("--deadline", type=float, default=90.0, help="seconds that a node has to answer")
    parser.add_argument("--patience", type=float, default=600.0, help="maximum seconds to wait for anything")
    parser.add_argument("--keep", type=Path, help="an empty folder for the site and the logs, kept afterwards")
    parser.add_argument("--out", type=Path, default=RESULTS / "network.json")
    options = parser.parse_args()
    if options.nodes % 4 or options.nodes < 4:
        parser.error(f"got --nodes {options.nodes}; expected a multiple of 4")
    reason = impossible()
    if reason is not None:
        print(f"skipped the bad network: {reason}")
        return
    torch.set_num_threads(1)
    started = time.perf_counter()

    def say(text: str) -> None:
        print(f"{time.perf_counter() - started:7.0f} s  {text}", flush=True)

    with tempfile.TemporaryDirectory(prefix="fedrbn-soak-") as name:
        folder = options.keep or Path(name)
        everybody = (*scenario.names(options.nodes), scenario.THIEF, scenario.STRANGER)
        with (
            network(everybody) as made,
            scenario.trial(
                folder, made, options.nodes, options.seed, options.deadline, options.patience, say
            ) as under_way,
        ):
            rows = scenario.rows(under_way)
    for row in rows:
        say(f"{row.fault}: {row.tried} times, {row.happened}")
    spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    content = {
        "made_by": f"python -m soak.network --nodes {options.nodes} --deadline {options.deadline:g}",
        "section": "A bad network",
        "seed": options.seed,
        "seconds": round(time.perf_counter() - started),
        "processor_seconds": round(sum(each.ru_utime + each.ru_stime for each in spent)),
        "scale": f"digits-mini, {options.nodes} nodes, width 1/16, {scenario.ROUNDS} rounds, PGD-2, a deadline of "
        f"{options.deadline:g} s, {os.cpu_count()} cores",
        "versions": {package: version(package) for package in ("fedrbn", "flwr", "torch")}
        | {"python": platform.python_version()},
        "rows": [asdict(row) for row in rows],
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
