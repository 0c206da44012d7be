"""`python tools/affine_shift.py RUN …`: how far FedRob's affine maps move the pixels of their users' training images.

Prints the mean |Λx + δ − x| in units of 1/255 over the AT users of each domain, after the last finished round.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

from fedrbn.federated.assemble import assemble
from fedrbn.federated.training.affine import AffineMap
from fedrbn.federated.training.memory import recall
from fedrbn.runs.directory import RunDirectory
from fedrbn.types import Role


def shifts(run: Path) -> Iterator[tuple[str, float]]:
    """(domain, mean |Λx + δ − x| · 255) for every AT user that has a map."""
    directory = RunDirectory.open(run)
    rounds = len(directory.records("rounds.jsonl"))
    for client in assemble(directory.experiment()).federation.clients:
        memory = recall(directory.clients, client.id, rounds) if client.role is Role.AT else {}
        if "matrix" in memory:
            x, _ = client.train.pixels(slice(None))
            yield client.domain, 255 * (AffineMap(memory["matrix"], memory["shift"])(x) - x).abs().mean().item()


def main(runs: list[str]) -> None:
    """One line for each run."""
    for run in runs:
        found = list(shifts(Path(run)))
        if not found:
            raise SystemExit(f"got {run}, where no client has an affine map; expected a run of method fedrob.")
        by_domain = {domain: fmean(v for d, v in found if d == domain) for domain, _ in found}
        text = ", ".join(f"{domain} {value:.1f}" for domain, value in by_domain.items())
        print(f"{run}: {fmean(value for _, value in found):.1f}/255 ({text})")


if __name__ == "__main__":
    main(sys.argv[1:])
