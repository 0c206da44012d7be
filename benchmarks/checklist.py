"""How far the check-list's allowance is from honest attacks and from weakened ones, on small networks.

    python benchmarks/checklist.py [--networks 3]

Trains networks of two kinds on digits-mini (8 × 8 pixels, ε = 25.5/255), adversarially and without an adversary, each
with several seeds. Then it attacks 256 test images with the reference and with honest and weakened attacks. For each
attack it prints the gap, RA under the attack minus RA under the reference, and how many evaluations the line "a
reference attack is not much stronger" fails.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from torch import Tensor, nn

from fedrbn.attacks import PGD, LogitsAttack, Untargeted
from fedrbn.data.samples import Samples
from fedrbn.data.sets.digits_mini import digits_mini
from fedrbn.evaluation.accuracy import Accuracy
from fedrbn.evaluation.checklist import IMAGES, MISSED, most, reference
from fedrbn.federated.objectives import Adversarial
from fedrbn.nets.dual_bn import DualNet, dual
from fedrbn.types import Branch

EPS, SIDE, CLASSES = 0.1, 8, 10
STEPS, BATCH = 150, 64
ATTACKS: dict[str, PGD] = {
    "PGD, 20 steps of ε/4 (honest)": PGD(eps=EPS, steps=20, step_size=EPS / 4),
    "PGD, 7 steps of ε/4 (honest, the paper's)": PGD(eps=EPS, steps=7, step_size=EPS / 4),
    "momentum, 7 steps of ε/4 (honest)": PGD(eps=EPS, steps=7, step_size=EPS / 4, random_start=False, decay=1.0),
    "PGD, 5 steps of ε/4": PGD(eps=EPS, steps=5, step_size=EPS / 4),
    "PGD, 3 steps of ε/4": PGD(eps=EPS, steps=3, step_size=EPS / 4),
    "FGSM from a random start, one step of 1.25 ε": PGD(eps=EPS, steps=1, step_size=1.25 * EPS),
    "PGD, 7 steps in a ball of 0.9 ε": PGD(eps=0.9 * EPS, steps=7, step_size=EPS / 4),
    "PGD, 7 steps in a ball of 0.75 ε": PGD(eps=0.75 * EPS, steps=7, step_size=EPS / 4),
    "PGD, 7 steps in a ball of 0.5 ε": PGD(eps=0.5 * EPS, steps=7, step_size=EPS / 4),
    "PGD, 7 steps of ε/40": PGD(eps=EPS, steps=7, step_size=EPS / 40),
    "PGD, one step of ε/4": PGD(eps=EPS, steps=1, step_size=EPS / 4),
}


def shallow() -> nn.Module:
    """One convolution."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * SIDE * SIDE, CLASSES)
    )


def deep() -> nn.Module:
    """Two convolutions and a hidden layer."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1, stride=2),
        nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(4 * SIDE * SIDE, 32), nn.BatchNorm1d(32), nn.ReLU(),
        nn.Linear(32, CLASSES),
    )  # fmt: skip


def trained(build: Callable[[], nn.Module], train: Samples, eps: float, seed: int) -> DualNet:
    """A network trained against PGD with 3 steps; both branches."""
    torch.manual_seed(seed)
    net, order = dual(build()), torch.Generator().manual_seed(seed)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    objective = Adversarial(PGD(eps=eps, steps=3, step_size=eps / 2))
    for _ in range(STEPS):
        x, y = train.pixels(torch.randint(0, len(train), (BATCH,), generator=order))
        optimizer.zero_grad()
        objective(net.train(), x, y, order)
        optimizer.step()
    return net.eval()


def right(net: DualNet, test: Samples, attack: LogitsAttack) -> Tensor:
    """Which of the images withstand the attack."""
    question = Accuracy(Branch.NOISED, "a", attack, limit=IMAGES)
    return question(net, test, torch.Generator().manual_seed(3))["a@noised"]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", type=int, default=3, help="Seeds of each kind of network.")
    seeds = range(1, parser.parse_args().networks + 1)
    data = digits_mini(SIDE).domains[0]
    gaps: dict[str, list[float]] = {name: [] for name in ATTACKS}
    failed = dict.fromkeys(ATTACKS, 0)
    strongest = []
    for build in (shallow, deep):
        for eps in (EPS, 1e-6):
            for seed in seeds:
                net = trained(build, data.train, eps, seed)
                base = int(right(net, data.test, reference(EPS)).sum())
                strongest.append(base / IMAGES)
                for name, attack in ATTACKS.items():
                    excess = int(right(net, data.test, Untargeted(attack)).sum()) - base
                    gaps[name].append(100 * excess / IMAGES)
                    failed[name] += excess > most(IMAGES, MISSED)
    limit = 100 * most(IMAGES, MISSED) / IMAGES
    print(f"{len(strongest)} networks, RA under the reference {min(strongest):.1%} to {max(strongest):.1%}")
    print(f"The line fails above {limit:.1f} points (allowance {MISSED:.0%}).\n")
    print("| attack | gap to the reference, in points: lowest, mean, highest | fails |\n|---|---:|---:|")
    for name, found in gaps.items():
        mean = sum(found) / len(found)
        print(f"| {name} | {min(found):.1f}, {mean:.1f}, {max(found):.1f} | {failed[name]} of {len(found)} |")


if __name__ == "__main__":
    main()
