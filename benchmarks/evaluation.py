"""CPU seconds to attack the same network and images: ours compared with torchattacks and plain pyautoattack.

Ours includes everything that an evaluation does: clean predictions, skipping misclassified images, folding, and scoring
the adversarial images. Writes benchmarks/evaluation.json.
"""

from __future__ import annotations

import contextlib
import io
import json
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torchattacks
from pyautoattack import AutoAttack as BareAutoAttack

from fedrbn import PGD, Branch, Samples, plain, single
from fedrbn.attacks import AutoAttack, LogitsAttack, Untargeted
from fedrbn.attacks.pgd import mia
from fedrbn.data import load
from fedrbn.evaluation.accuracy import Accuracy
from fedrbn.federated.client import batches, pixels
from fedrbn.federated.objectives import Adversarial
from fedrbn.federated.training.sgd import LocalTask, Sgd
from fedrbn.nets import build
from fedrbn.nets.dual_bn import DualNet

EPS, STEP = 8 / 255, 2 / 255


def trained() -> tuple[DualNet, Samples]:
    """A network trained adversarially on one domain for a few epochs, and test images of two domains."""
    first, second = load("digits-mini").domains[:2]
    net = single(build("digits", 10, 0.25, (3, 28, 28), seed=1)).train()
    random = torch.Generator().manual_seed(1)
    order = pixels(first.train, batches(len(first.train), 32, 120, random))
    Sgd()(net, order, LocalTask(Adversarial(PGD(steps=3, step_size=4 / 255)), 0.05, random))
    images = torch.cat([first.test.images[:150], second.test.images[:100]])
    return net.eval(), Samples(images, torch.cat([first.test.labels[:150], second.test.labels[:100]]))


def ours(net: DualNet, samples: Samples, attack: LogitsAttack) -> Callable[[], float]:
    """Robust accuracy computed by the package."""

    def measure() -> float:
        answers = Accuracy(Branch.CLEAN, "attack", attack)(net, samples, torch.Generator().manual_seed(1))
        return answers["attack@clean"].double().mean().item()

    return measure


def theirs(net: DualNet, samples: Samples, attack: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Callable:
    """Robust accuracy computed by a library that attacks every image in batches of 128."""
    network = plain(net, Branch.CLEAN)

    def measure() -> float:
        right = 0
        for start in range(0, len(samples), 128):
            x, y = samples.pixels(slice(start, start + 128))
            with torch.no_grad():
                before = network(x).argmax(1) == y
            adversarial = attack(x, y)
            with torch.no_grad():
                right += int(((network(adversarial).argmax(1) == y) & before).sum())
        return right / len(samples)

    return measure


def bare_autoattack(network: torch.nn.Module) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """pyautoattack as in its README."""

    def attack(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with contextlib.redirect_stdout(io.StringIO()):
            adversarial, _ = BareAutoAttack(network, eps=EPS, seed=1, device="cpu").run_standard_evaluation(x, y)
        return adversarial

    return attack


def timed(action: Callable[[], float]) -> tuple[float, float]:
    """(result, CPU seconds)."""
    started = time.process_time()
    return action(), time.process_time() - started


def main() -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    net, samples = trained()
    network = plain(net, Branch.CLEAN)
    few = samples.first(12)
    pairs = {
        "PGD-20": (
            theirs(net, samples, torchattacks.PGD(network, eps=EPS, alpha=STEP, steps=20)),
            ours(net, samples, Untargeted(PGD(EPS, 20, STEP))),
        ),
        "MIA-20": (
            theirs(net, samples, torchattacks.MIFGSM(network, eps=EPS, alpha=STEP, steps=20)),
            ours(net, samples, Untargeted(mia(EPS, 20, STEP))),
        ),
        "AutoAttack": (theirs(net, few, bare_autoattack(network)), ours(net, few, AutoAttack(EPS))),
    }
    rows = []
    for name, (library, package) in pairs.items():
        (library_ra, library_seconds), (package_ra, package_seconds) = timed(library), timed(package)
        rows.append(
            {
                "attack": name,
                "images": len(few) if name == "AutoAttack" else len(samples),
                "library_seconds": library_seconds,
                "ours_seconds": package_seconds,
                "library_ra": library_ra,
                "ours_ra": package_ra,
            }
        )
    print(
        f"{'attack':>11} {'images':>7} {'library s':>10} {'ours s':>8} {'ratio':>6} {'RA library':>11} {'RA ours':>8}"
    )
    for row in rows:
        ratio = row["library_seconds"] / row["ours_seconds"]
        print(
            f"{row['attack']:>11} {row['images']:>7} {row['library_seconds']:>10.1f} {row['ours_seconds']:>8.1f} "
            f"{ratio:>6.2f} {row['library_ra']:>11.1%} {row['ours_ra']:>8.1%}"
        )
    path = Path(__file__).with_suffix(".json")
    path.write_text(json.dumps({"torch": torch.__version__, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
