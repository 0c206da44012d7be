"""Write a new attack, which tries random corners of the ε-ball. Train once, then evaluate with PGD and the new attack.

python examples/new_attack.py [RESULTS_FOLDER]
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

import fedrbn
from fedrbn.attacks.protocols import Logits

EPS, TRIES = 8 / 255, 10


def random_corners(logits: Logits, x: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
    """Try several random corners of the ball; return, for each image, the one with the largest cross-entropy."""
    best, worst_loss = x, torch.full(y.shape, -torch.inf)
    for _ in range(TRIES):
        signs = 2.0 * torch.randint(0, 2, x.shape, generator=generator) - 1
        tried = (x + EPS * signs).clamp(0, 1)
        loss = F.cross_entropy(logits(tried), y, reduction="none")
        better = loss > worst_loss
        best, worst_loss = torch.where(better[:, None, None, None], tried, best), torch.where(better, loss, worst_loss)
    return best


SETTINGS = {
    "data": {"name": "digits-mini", "domains": ["plain", "pen"]},
    "federation": {"users_per_domain": 2, "fraction": 0.1, "at": ["plain"], "test_samples": 20},
    "model": {"width": 0.125},
    "train": {"rounds": 2},
    "run": {"workers": 1},
}


def main(folder: Path) -> None:
    """Train, then attack with PGD and with the attack above."""
    fedrbn.run(fedrbn.make(SETTINGS), folder / "run", force=True)
    attacks = fedrbn.EvaluationSettings(attacks=("pgd-7", "new_attack:random_corners"))
    found = fedrbn.evaluate(folder / "run", attacks, workers=1)
    for name in found["attacks"]:
        print(f"{name}: robust accuracy {found['mean'][found.record.robust_column(name)]:.1%}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "new_attack"))
