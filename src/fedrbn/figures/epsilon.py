"""Robust accuracy over ε under three adversaries: an attack through the wrong branch overestimates robustness.

The same trained networks, attacked through the branch that does not predict (a transfer attack), through the branch
that predicts, and adaptively.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import torch
from matplotlib.figure import Figure

from fedrbn.attacks import PGD, LogitsAttack, Untargeted
from fedrbn.data.samples import Samples
from fedrbn.errors import FigureError
from fedrbn.evaluation.accuracy import Accuracy, attack_through, logits_of
from fedrbn.federated.assemble import assemble
from fedrbn.figures import style
from fedrbn.figures.sources import Request, described
from fedrbn.figures.style import End, Mark
from fedrbn.nets.dual_bn import DualNet
from fedrbn.nets.state import batch_norms
from fedrbn.runs.directory import RunDirectory
from fedrbn.runs.load import load
from fedrbn.types import Branch

SAMPLES = 40
"""Maximum test images of a client."""
EPSILONS = (2, 4, 8, 12, 16)
"""In 1/255 of the pixel range."""
STEPS = 20
OTHER, PREDICTING, ADAPTIVE = "through the other branch", "through the branch that predicts", "adaptive"
LOOKS = {OTHER: Mark(style.VERMILION, "s"), PREDICTING: Mark(style.SKY, "o"), ADAPTIVE: Mark("#222222", "")}


@dataclass(frozen=True)
class Withstood:
    """Shares of images that are classified correctly without an attack and under each adversary."""

    clean: float
    attacked: dict[str, float]


def withstood(net: DualNet, samples: Samples, attack: LogitsAttack) -> Withstood:
    """The result of an attack on one client's network, which predicts with BN_a."""
    random = torch.Generator().manual_seed(1)
    answers = Accuracy(Branch.NOISED, "a", attack, adaptive=True)(net, samples, random)
    x, y = samples.pixels(slice(None))
    transferred = attack_through(attack, [logits_of(net, Branch.CLEAN)], x, y, random)
    with torch.no_grad():
        other = (net(transferred, Branch.NOISED).argmax(1) == y) & answers["clean@noised"]
    right = {OTHER: other, PREDICTING: answers["a@noised"], ADAPTIVE: answers["a@noised adaptive"]}
    shares = {name: outcome.double().mean().item() for name, outcome in right.items()}
    return Withstood(answers["clean@noised"].double().mean().item(), shares)


def curves(path: Path) -> dict[str, list[float]]:
    """For each adversary, the accuracy in %, mean over clients, at ε = 0 and at each of EPSILONS."""
    trained, assembly = load(path), assemble(RunDirectory.open(path).experiment())
    if not any(names.branch is Branch.NOISED for names in batch_norms(trained.net)):
        raise FigureError(f"got run {path}, whose networks have only one branch; expected a run of fedrbn.")
    found: dict[str, list[float]] = {name: [] for name in LOOKS}
    for eps in EPSILONS:
        attack = Untargeted(PGD(eps=eps / 255, steps=STEPS, step_size=eps / 255 / 4))
        clients = assembly.federation.clients
        all_ = [withstood(trained.dual_client(c.id), c.test.first(SAMPLES), attack) for c in clients]
        for name, values in found.items():
            if not values:
                values.append(100 * fmean(own.clean for own in all_))
            values.append(100 * fmean(own.attacked[name] for own in all_))
    return found


def epsilon(request: Request) -> Figure:
    """Accuracy over ε of one run under three adversaries."""
    if not request.runs:
        raise FigureError("got no run; expected a directory: --run runs/demo/fedrbn-… (make demo trains one).")
    path = request.runs[0]
    figure = style.page(style.TEXT, 2.9)
    axes = figure.subplots()
    ends = []
    for name, values in curves(path).items():
        mark, flattering = LOOKS[name], name == OTHER
        wide = 4.0 if name == PREDICTING else 1.4  # the adaptive curve often coincides with it
        axes.plot((0, *EPSILONS), values, "--" if flattering else "-", color=mark.colour, marker=mark.marker, lw=wide)
        ends.append(End(name, EPSILONS[-1], values[-1], mark.colour))
    axes.set(xlabel="ε in 1/255 of the pixel range", ylabel="accuracy in %, mean over clients", ylim=(0, 100))
    about = f"PGD-{STEPS}; networks predict with BN_a; the first {SAMPLES} test images of each client at most."
    return style.finish(figure, f"{about} Run: {described(path)}.", {axes: ends})
