"""Users' batch-norm statistics in two dimensions: distances between domains and between clean and adversarial inputs.

Each panel is a principal component analysis of one layer's means (or variances): one row for each user and branch, one
column for each channel. Circles are BN_c, crosses the BN_a of AT users, plus signs the BN_a that was estimated for ST
users (Eq. 3); colours are domains.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray
from sklearn.decomposition import PCA

from fedrbn.federated.prediction import predicting_branch
from fedrbn.figures import style
from fedrbn.figures.sources import Request, described, trained_run
from fedrbn.nets.state import BNNames, batch_norms
from fedrbn.runs.load import Trained, load
from fedrbn.types import Branch, Role

ALL_AT = "Digits/FedRBN λ=0.5/All"
"""The benchmark's run in which all users train adversarially, as in the paper's figure."""
ACROSS = 5
"""Layers per row; networks with more layers have further rows."""
KINDS = {"o": "BN_c", "x": "BN_a, trained", "+": "BN_a, estimated"}


@dataclass(frozen=True)
class Dot:
    """The user and branch of a point in a panel."""

    domain: str
    marker: str


def pca(rows: NDArray[np.float64]) -> tuple[NDArray[np.float64], tuple[float, float]]:
    """Rows in the plane of their first two principal components, and the shares of variance that these explain.

    The sign of an axis is arbitrary: it is chosen so that the largest coefficient of its component is positive.
    """
    count = min(2, *rows.shape)
    model = PCA(count, svd_solver="full").fit(rows)
    largest = np.abs(model.components_).argmax(axis=1)
    signs = np.where(model.components_[np.arange(count), largest] < 0, -1.0, 1.0)
    plane = np.zeros((len(rows), 2))
    plane[:, :count] = model.transform(rows) * signs
    shares = np.zeros(2)
    shares[:count] = np.nan_to_num(model.explained_variance_ratio_)
    return plane, (float(shares[0]), float(shares[1]))


def layers(norms: Sequence[BNNames]) -> list[str]:
    """The network's batch-norm layers, from the first to the last."""
    return list(dict.fromkeys(names.layer for names in norms))


def points(trained: Trained, layer: str, variance: bool) -> tuple[NDArray[np.float64], list[Dot]]:
    """One layer's means (or variances) for every user that took part: a row for each user and branch."""
    rows, dots = [], []
    for names in batch_norms(trained.net):
        if names.layer != layer:
            continue
        for member in trained.plan.members:
            # Initial statistics carry no information: of a user that never took part, or of a BN_a without an estimate.
            filled = predicting_branch(trained.plan, trained.state, member) is Branch.NOISED
            if member.id not in trained.state.reported or (names.branch is Branch.NOISED and not filled):
                continue
            tensors = {**trained.state.shared, **trained.state.personal[member.id]}
            rows.append(tensors[names.variance if variance else names.mean].double().numpy())
            noised = "x" if member.role is Role.AT else "+"
            dots.append(Dot(member.domain, "o" if names.branch is Branch.CLEAN else noised))
    return np.stack(rows), dots


def draw(axes: Axes, plane: NDArray[np.float64], dots: Sequence[Dot], colours: dict[str, str]) -> None:
    """The points of one panel, without the numbers of arbitrary axes."""
    for dot in dict.fromkeys(dots):
        own = plane[[other == dot for other in dots]]
        colour = colours[dot.domain]
        face = "none" if dot.marker == "o" else colour
        axes.plot(
            own[:, 0], own[:, 1], dot.marker, color=colour, markersize=4, markeredgewidth=0.8, markerfacecolor=face
        )
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(True)
    axes.margins(0.12)


def bn_pca(request: Request) -> Figure:
    """All layers of one run: for every five of them, means above and variances below."""
    path = request.runs[0] if request.runs else trained_run(request, ALL_AT)
    return of_run(path)


def of_run(path: Path) -> Figure:
    """The figure of a run directory."""
    trained = load(path)
    chosen = layers(batch_norms(trained.net))
    domains = list(dict.fromkeys(member.domain for member in trained.plan.members))
    colours = {domain: style.SERIES[index % len(style.SERIES)] for index, domain in enumerate(domains)}
    bands = math.ceil(len(chosen) / ACROSS)
    figure = style.page(style.TEXT, 0.6 + 3.0 * bands)
    panels = figure.subplots(2 * bands, min(ACROSS, len(chosen)), squeeze=False)
    seen: set[str] = set()
    for axes in panels[-2:, len(chosen) - ACROSS * (bands - 1) :].flat:
        axes.set_axis_off()  # the last row is not full
    for index, layer in enumerate(chosen):
        band, column = divmod(index, ACROSS)
        for row, kind in enumerate(("mean", "variance"), start=2 * band):
            values, dots = points(trained, layer, variance=kind == "variance")
            plane, shares = pca(values)
            axes = panels[row][column]
            draw(axes, plane, dots, colours)
            axes.set_title(f"{layer.removeprefix('network.')} {kind}", fontsize=8 if len(layer) < 16 else 6)
            axes.set_xlabel(f"{100 * shares[0]:.0f} % and {100 * shares[1]:.0f} %", fontsize=6)
            seen |= {dot.marker for dot in dots}
    keys = [Line2D([], [], linestyle="", marker="o", color=colours[name], label=name) for name in domains]
    shapes = [
        Line2D([], [], linestyle="", marker=marker, color="#333333", markerfacecolor="none", label=text)
        for marker, text in KINDS.items()
        if marker in seen
    ]
    figure.legend(handles=keys + shapes, loc="outside upper left", ncols=8, handletextpad=0.1, columnspacing=1.2)
    below = (
        "Principal components of users' batch-norm statistics; below each panel the variance that its axes explain. "
        "AT users train their BN_a; that of ST users is estimated (Eq. 3)."
    )
    return style.finish(figure, f"{below} Run: {described(path)}.")
