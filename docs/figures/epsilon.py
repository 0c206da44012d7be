"""The figure of docs/numbers.md: robust accuracy over ε as three adversaries see it.

    python docs/figures/epsilon.py runs/demo/fedrbn-… docs/figures/epsilon.png

The same trained networks, attacked through the branch that does not predict (a transfer attack, which flatters),
through the branch that predicts, and adaptively.
"""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import fmean

import matplotlib as mpl
import torch
from matplotlib.figure import Figure

import fedrbn
from fedrbn.assembly import assemble
from fedrbn.attacks import PGD, Untargeted
from fedrbn.evaluation import Accuracy, attack_through, logits_of
from fedrbn.storage import RunDirectory
from fedrbn.types import Branch

SAMPLES = 40
EPSILONS = (2, 4, 8, 12, 16)


def curves(path: Path) -> tuple[dict[str, list[float]], float]:
    """Mean robust accuracy over clients for each adversary and ε, and the clean accuracy."""
    trained, assembly = fedrbn.load(path), assemble(RunDirectory.open(path).experiment())
    names = ("through the other branch", "through the branch that predicts", "adaptive")
    found: dict[str, list[float]] = {name: [] for name in names}
    clean: list[float] = []
    for eps in EPSILONS:
        attack = Untargeted(PGD(eps=eps / 255, steps=20, step_size=eps / 255 / 4))
        rows = []
        for client in assembly.federation.clients:
            net, samples = trained.dual_client(client.id), client.test.first(SAMPLES)
            random = torch.Generator().manual_seed(1)
            answers = Accuracy(Branch.NOISED, "a", attack, adaptive=True)(net, samples, random)
            x, y = samples.pixels(slice(None))
            transferred = attack_through(attack, [logits_of(net, Branch.CLEAN)], x, y, random)
            with torch.no_grad():
                wrong_branch = (net(transferred, Branch.NOISED).argmax(1) == y) & answers["clean@noised"]
            parts = (wrong_branch, answers["a@noised"], answers["a@noised adaptive"], answers["clean@noised"])
            rows.append([part.double().mean().item() for part in parts])
        for values, column in zip(found.values(), zip(*rows, strict=True), strict=False):
            values.append(fmean(column))
        clean.append(fmean(row[3] for row in rows))
    return found, fmean(clean)


def main() -> None:
    """Measure and draw."""
    mpl.use("Agg")
    torch.set_num_threads(1)
    found, clean = curves(Path(sys.argv[1]))
    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    axes = figure.add_subplot()
    for (name, values), style in zip(found.items(), (("C3--o", 1.5), ("C0-", 6), ("k-", 1.5)), strict=True):
        line, width = style
        axes.plot([0, *EPSILONS], [100 * v for v in (clean, *values)], line, linewidth=width, label=name, markersize=4)
        print(name, [f"{v:.1%}" for v in (clean, *values)])
    axes.axhline(10, color="grey", linewidth=0.8, linestyle=":")
    axes.text(0, 5, "chance", color="grey", fontsize=8)
    axes.set(xlabel="ε in 1/255 of the pixel range", ylabel="accuracy in %, mean over clients", ylim=(0, 100))
    axes.legend(title="PGD-20, network predicts with BN_a; attack goes", frameon=False, fontsize=9, title_fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(sys.argv[2], dpi=150)


if __name__ == "__main__":
    main()
