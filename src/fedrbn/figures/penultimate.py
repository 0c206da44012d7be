"""Activations before the last layer: three classes, projected onto the plane of their templates.

After Müller, Kornblith and Hinton (2019). The template of a class is its row w of the last layer's weights. Three of
them span a plane; with the orthonormal e1 along w2 − w1 and e2 along the rest of w3 − w1, an activation h is drawn at

    (h · e1, h · e2)

The last layer can separate classes that are apart in this plane. The panels of a row show the same images; those of one
run also share the plane.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor, nn

from fedrbn.attacks import LogitsAttack
from fedrbn.data.samples import Client, Samples
from fedrbn.errors import FigureError
from fedrbn.evaluation.accuracy import attack_through, logits_of
from fedrbn.federated.aggregation.layout import Local
from fedrbn.federated.assemble import assemble
from fedrbn.figures import style
from fedrbn.figures.sources import Request, described, trained_run
from fedrbn.nets.dual_bn import DualNet
from fedrbn.randomness import generator
from fedrbn.runs.directory import RunDirectory
from fedrbn.runs.load import Trained, load
from fedrbn.types import Branch, Role

ADAPTED, TRAINED, TRANSFERRED = "Digits/FedRBN λ=0.5/MNIST", "Digits/FedRBN λ=0.5/All", "Digits/FedRBN λ=0/MNIST"
"""Cells of the benchmark: BN_a from one domain with calibration, each user's own BN_a, from one domain without."""
STANDARD = "Digits/FATAvg/0 %"
"""Cell of `highlight`: FedAvg without AT users, which is the standard model."""
CLASSES = (0, 1, 2)
IMAGES = 400
"""Maximum images of a domain."""
MARKERS = ("o", "^", "s")


@dataclass(frozen=True)
class View:
    """A column of the figure: which networks, through which branch."""

    title: str
    run: Path
    branch: Branch


def last_layer(net: nn.Module, classes: int) -> nn.Linear:
    """The linear layer that computes the logits, found by type."""
    found = [module for module in net.modules() if isinstance(module, nn.Linear)]
    if not found or found[-1].out_features != classes:
        raise FigureError(
            f"got a network whose last linear layer does not give {classes} classes; expected one that ends in a "
            "linear layer, whose weights are the templates of the classes."
        )
    return found[-1]


def basis(templates: Tensor) -> Tensor:
    """The orthonormal basis of the plane through three templates [3, features], as columns [features, 2]."""
    first = templates[1] - templates[0]
    first = first / first.norm()
    across = templates[2] - templates[0]
    second = across - (across @ first) * first
    length = second.norm()
    if not length > 1e-6 * across.norm():  # this form is also true for NaN, from two equal templates
        raise FigureError("got three templates on one line; expected a plane through them. Train the network first.")
    return torch.stack([first, second / length], dim=1)


def activations(net: DualNet, branch: Branch, x: Tensor, classes: int) -> Tensor:
    """The input of the last layer for these pixels."""
    kept: list[Tensor] = []
    handle = last_layer(net, classes).register_forward_pre_hook(lambda _, given: kept.append(given[0]))
    try:
        with torch.no_grad():
            net(x, branch)
    finally:
        handle.remove()
    return kept[0]


def chosen_images(clients: Sequence[Client], seed: int) -> list[tuple[Client, Samples]]:
    """Up to IMAGES test images of the three classes in one domain, spread evenly over its clients."""
    each = max(1, IMAGES // len(clients))
    found = []
    for client in clients:
        index = torch.isin(client.test.labels, torch.tensor(CLASSES)).nonzero()[:, 0]
        order = torch.randperm(len(index), generator=generator(seed, "penultimate", client.id))
        found.append((client, client.test.take(index[order][:each])))
    return [(client, samples) for client, samples in found if len(samples)]


def standard_penultimate(request: Request) -> Figure:
    """The model without adversarial training."""
    path = request.runs[0] if request.runs else trained_run(request, STANDARD, "highlight")
    trained = sum(member.role is Role.AT for member in load(path).plan.members)
    if trained:
        raise FigureError(f"got run {path} with {trained} AT user(s); expected none: train with federation.at=0.")
    return by_domain([View("standard model", path, Branch.CLEAN)])


def bn_penultimate(request: Request) -> Figure:
    """The same networks through BN_c and through BN_a."""
    path = request.runs[0] if request.runs else trained_run(request, ADAPTED)
    return by_domain([View("BN_c", path, Branch.CLEAN), View("BN_a", path, Branch.NOISED)])


def transfer_penultimate(request: Request) -> Figure:
    """BN_a that each user trained itself, and BN_a that came from one domain."""
    if request.runs and len(request.runs) != 2:
        raise FigureError(
            f"got {len(request.runs)} run(s); expected two: --run DIR where all users are AT users (BN_a trained), "
            "then --run DIR where only the users of one domain are (BN_a transferred)."
        )
    paths = request.runs or tuple(trained_run(request, cell) for cell in (TRAINED, TRANSFERRED))
    titles = ("BN_a trained", "BN_a transferred")
    return by_domain([View(title, path, Branch.NOISED) for title, path in zip(titles, paths, strict=True)])


def by_domain(views: Sequence[View]) -> Figure:
    """A row for each domain; for each view a column with clean images and one with attacked images."""
    runs = {view.run: _usable(view.run) for view in views}
    assembly = assemble(RunDirectory.open(views[0].run).experiment())
    federation, classes = assembly.federation, len(assembly.federation.classes)
    if classes < len(CLASSES):
        raise FigureError(f"got data with {classes} classes; expected at least {len(CLASSES)}, to span a plane.")
    figure = style.page(style.TEXT if len(views) > 1 else style.COLUMN, 0.7 + 1.35 * len(federation.domains))
    panels = figure.subplots(len(federation.domains), 2 * len(views), squeeze=False)
    for axes, title in zip(panels[0], _titles(views), strict=True):
        axes.set_title(title)
    for row, domain in zip(panels, federation.domains, strict=True):
        images = chosen_images([client for client in federation.clients if client.domain == domain], seed=1)
        for column, view in enumerate(views):
            for attacked in (False, True):
                axes = row[column + len(views) * attacked]
                adversary = assembly.adversary if attacked else None
                found = [
                    projected(runs[view.run].dual_client(client.id), view.branch, samples, classes, adversary)
                    for client, samples in images
                ]
                _draw(axes, found)
        row[0].set_ylabel(federation.labels[domain])
    return _explained(figure, views, federation.classes)


def _titles(views: Sequence[View]) -> list[str]:
    return [f"{view.title}, {images}" for images in ("clean", "attacked") for view in views]


def _usable(path: Path) -> Trained:
    trained = load(path)
    if trained.plan.method.local is Local.EVERYTHING:
        raise FigureError(f"got run {path}, whose users share no weights; expected a common last layer to project on.")
    return trained


def projected(
    net: DualNet, branch: Branch, samples: Samples, classes: int, adversary: LogitsAttack | None = None
) -> tuple[Tensor, Tensor]:
    """A client's images in the plane of its last layer, and their labels; with an adversary they are attacked first."""
    x, y = samples.pixels(slice(None))
    if adversary is not None:
        x = attack_through(adversary, [logits_of(net, branch)], x, y, generator(1, "penultimate attack"))
    templates = last_layer(net, classes).weight.detach()[list(CLASSES)]
    return activations(net, branch, x, classes) @ basis(templates), y


def _draw(axes: Axes, found: Sequence[tuple[Tensor, Tensor]]) -> None:
    """The points of one panel in the colours and markers of their classes; empty if a domain has no such images."""
    plane = torch.cat([torch.zeros(0, 2), *(points for points, _ in found)])
    labels = torch.cat([torch.zeros(0, dtype=torch.int64), *(own for _, own in found)])
    for label, marker, colour in zip(CLASSES, MARKERS, style.SERIES, strict=False):
        own = plane[labels == label]
        axes.plot(own[:, 0], own[:, 1], marker, color=colour, markersize=2, alpha=0.55, markeredgewidth=0)
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(True)


def _explained(figure: Figure, views: Sequence[View], classes: Sequence[str]) -> Figure:
    """The figure with the legend of classes and the runs."""
    handles = figure.axes[0].get_lines()
    names = [f"class {classes[label]}" for label in CLASSES]
    figure.legend(handles, names, loc="outside upper left", ncols=len(CLASSES), markerscale=2.5, handletextpad=0.1)
    shown = {run: " and ".join(view.title for view in views if view.run == run) for run in [v.run for v in views]}
    runs = "; ".join(f"{titles}: {described(run)}" for run, titles in shown.items())
    return style.finish(
        figure,
        f"Activations before the last layer, projected onto the plane of three classes' templates; at most {IMAGES} "
        f"test images of each domain, attacked through the branch shown. {runs}.",
    )
