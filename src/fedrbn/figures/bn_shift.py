"""How far an attack moves the input of each batch-norm layer, under both threat models: what BN_a has to represent.

fedrbn.reproduce.bn_shift defines and computes the numbers. Each run is measured under the threat model that it was
trained with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import get_args

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedrbn.errors import FigureError
from fedrbn.figures import style
from fedrbn.figures.sources import Request, described, trained_run
from fedrbn.figures.style import Mark
from fedrbn.reproduce.bn_shift import IMAGES, measure
from fedrbn.reproduce.experiment_cells import Threat
from fedrbn.runs.directory import RunDirectory

CELL = "Digits/FedRBN λ=0.5/20 %"
"""The default: a run of the benchmark."""
PANELS = {"random": "random network", "trained": "trained network", "stored": "stored: BN_a against BN_c"}
LOOKS = {"pixel": Mark(style.BLUE, "o"), "authors-release": Mark(style.VERMILION, "s")}
YARDSTICK = Mark(style.GREY, "")
KINDS = {"mean": "mean shift |μ̃ − μ| / σ", "variance": "variance shift |ln σ̃²/σ²|"}


def bn_shift(request: Request) -> Figure:
    """A column for each network, with mean shifts above and variance shifts below."""
    threats: tuple[Threat, ...] = get_args(Threat)
    runs = request.runs or tuple(trained_run(replace(request, threat=threat), CELL) for threat in threats)
    by_threat: dict[str, Path] = {RunDirectory.open(path).experiment().attack.threat: path for path in runs}
    if len(by_threat) < len(runs):
        raise FigureError(
            f"got {len(runs)} runs of {' and '.join(by_threat)}; expected at most one of each threat model, "
            f"{' and '.join(LOOKS)}. Give fewer with --run."
        )
    return drawn({threat: measure(path) for threat, path in by_threat.items()}, by_threat)


def drawn(found: Mapping[str, Mapping[str, float]], runs: Mapping[str, Path]) -> Figure:
    """The figure for these shifts, by threat model."""
    figure = style.page(style.TEXT, 4.3)
    panels = figure.subplots(2, len(PANELS), sharex=True, sharey="row", squeeze=False)
    for row, (kind, label) in zip(panels, KINDS.items(), strict=True):
        row[0].set_ylabel(label)
        for axes, network in zip(row, PANELS, strict=True):
            _panel(axes, network, kind, found)
    for axes, title in zip(panels[0], PANELS.values(), strict=True):
        axes.set_title(title)
    handles, labels = panels[0][1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=len(labels))
    below = (
        "Input of each batch-norm layer for clean and attacked images, mean over channels and domains; bands reach "
        f"from the lowest to the highest domain; at most {IMAGES} held-out images of one user per domain. Grey: "
        "clean images of two domains instead. Log scale."
    )
    return style.finish(figure, " ".join([below, *(f"Run: {described(path)}." for path in runs.values())]))


def _panel(axes: Axes, network: str, kind: str, found: Mapping[str, Mapping[str, float]]) -> None:
    for threat, numbers in found.items():
        _line(axes, numbers, network, kind, LOOKS[threat], f"attacked, {threat}")
    if network != "random":
        _line(axes, next(iter(found.values())), "domains", kind, YARDSTICK, "another domain, clean")
    axes.set_yscale("log")


def _line(axes: Axes, numbers: Mapping[str, float], network: str, kind: str, mark: Mark, label: str) -> None:
    """One network's layers in order; nothing if it was not measured, such as BN_a without dual batch norm."""
    layers = [int(text.split(" ")[2]) for text in numbers if text.startswith(f"shift {network} ") and " mean" in text]
    if not layers:
        return

    def values(which: str) -> list[float]:
        return [numbers[f"shift {network} {layer} {which}"] for layer in layers]

    dashed = "--" if mark is YARDSTICK else "-"
    axes.plot(layers, values(kind), dashed, color=mark.colour, marker=mark.marker, label=label)
    if kind == "mean" and mark is not YARDSTICK:
        axes.fill_between(layers, values("lowest"), values("highest"), color=mark.colour, alpha=0.12, linewidth=0)
    axes.set_xticks(layers, [f"bn{layer}" for layer in layers])
