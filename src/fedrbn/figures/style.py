"""The common style of figures: column widths, colours that colour-blind readers can distinguish, labels on lines.

The colours are those of Okabe and Ito, without the yellow and the orange, which are too pale for text on white. No
figure relies on colour alone: markers, hatches or labels carry the same information.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from fedrbn.errors import FigureError

COLUMN, TEXT = 3.4, 6.8
"""Width of one column and of the whole text of a two-column page, in inches."""
BLUE, VERMILION, GREEN, PURPLE, SKY, BROWN, GREY = (
    "#0072b2", "#d55e00", "#009e73", "#b8578f", "#3a9bd6", "#8c6d1f", "#666666",
)  # fmt: skip
SERIES = (BLUE, VERMILION, GREEN, PURPLE, SKY, BROWN, GREY)
_CHARACTERS_PER_INCH = 24.5
"""Characters of the footnote per inch; slightly fewer than fit."""
_LOOK: Mapping[str, object] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 7.5,
    "axes.titlesize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.5,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "lines.linewidth": 1.4,
    "lines.markersize": 4,
    "legend.frameon": False,
    "legend.fontsize": 7,
    "hatch.linewidth": 0.5,
    "svg.fonttype": "none",  # text stays text: it can be searched, read by screen readers and tested
    "svg.hashsalt": "fedrbn",  # ids of clip paths are the same in every run
}


@dataclass(frozen=True)
class Mark:
    """The look of one series in all figures."""

    colour: str
    marker: str
    hatch: str = ""


METHODS: Mapping[str, Mark] = {
    "FedRBN": Mark(BLUE, "o"),
    "FATBN": Mark(VERMILION, "s", "///"),
    "FATAvg": Mark(GREEN, "^", ".."),
    "FATProx": Mark(PURPLE, "D", "\\\\\\"),
    "FedRBN without propagation": Mark(SKY, "v", "|||"),
    "Local AT": Mark(GREY, "X", "xx"),
}


SHORT = {"FedRBN without propagation": "FedRBN, no prop."}
"""Short forms of names that are too long for the end of a line."""


def marks(names: Sequence[str]) -> dict[str, Mark]:
    """A mark for each series: the paper's methods have fixed marks, others get the remaining ones."""
    left = iter([mark for name, mark in METHODS.items() if name not in names] + [Mark(BROWN, "P", "++")] * len(names))
    return {name: METHODS[name] if name in METHODS else next(left) for name in names}


@contextmanager
def applied(changes: Mapping[str, object] | None = None) -> Iterator[None]:
    """Draw and save in this style, with optional changes; matplotlib's settings are restored afterwards."""
    look: dict[str, Any] = {**_LOOK, **(changes or {})}
    with mpl.rc_context(look):  # type: ignore[arg-type]  # keys are names of settings, which stubs enumerate
        yield


def page(width: float, height: float) -> Figure:
    """An empty figure of this size in inches."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


@dataclass(frozen=True)
class End:
    """The last point of a line, where the line's name is written."""

    text: str
    x: float
    y: float
    colour: str


def finish(figure: Figure, note: str, ends: Mapping[Axes, Sequence[End]] | None = None) -> Figure:
    """Write the source of the numbers in small type at the bottom, then the names of lines at their ends."""
    lines = textwrap.fill(note, int(figure.get_figwidth() * _CHARACTERS_PER_INCH), break_on_hyphens=False)
    figure.supxlabel(lines, fontsize=5.5, color="#555555", x=0.01, ha="left")
    name_ends(ends or {})
    return figure


def name_ends(ends: Mapping[Axes, Sequence[End]]) -> None:
    """Write the names of lines at their ends, after everything else: only then is the size of the axes known."""
    for figure in {root for axes in ends if (root := axes.get_figure(root=True)) is not None}:
        figure.draw_without_rendering()
    for axes, found in ends.items():
        _label_ends(axes, found)


def _label_ends(axes: Axes, ends: Sequence[End]) -> None:
    """Write each line's name to the right of its last point; names that would overlap move apart."""
    low, high = axes.get_ylim()
    size = float(mpl.rcParams["font.size"])
    gap = 1.3 * size / 72 * axes.figure.dpi / axes.get_window_extent().height * (high - low)
    right = max((end.x for end in ends), default=0)
    for end, y in zip(ends, spread([end.y for end in ends], gap), strict=True):
        axes.annotate(
            SHORT.get(end.text, end.text),
            (right, y),
            xytext=(2 / 3 * size, 0),
            textcoords="offset points",
            va="center",
            color=end.colour,
            annotation_clip=False,
        )


def spread(positions: Sequence[float], gap: float) -> list[float]:
    """The positions moved as little as possible (least squares) so that neighbours are at least `gap` apart.

    Neighbours that are too close form a block, which is centred at the mean of its members' original positions.
    """
    order = sorted(range(len(positions)), key=lambda index: positions[index])
    blocks: list[list[int]] = []
    for index in order:
        blocks.append([index])
        while len(blocks) > 1 and _start(blocks[-1], positions, gap) < (
            _start(blocks[-2], positions, gap) + gap * len(blocks[-2])
        ):
            last = blocks.pop()
            blocks[-1] += last
    moved = list(positions)
    for block in blocks:
        for rank, index in enumerate(block):
            moved[index] = _start(block, positions, gap) + rank * gap
    return moved


def _start(block: Sequence[int], positions: Sequence[float], gap: float) -> float:
    return sum(positions[index] for index in block) / len(block) - gap * (len(block) - 1) / 2


def save(figure: Figure, path: Path, title: str) -> tuple[Path, Path]:
    """Write FILE.svg and FILE.png; the same numbers give the same bytes. A suffix .svg or .png of `path` is dropped."""
    if path.suffix not in ("", ".svg", ".png"):
        raise FigureError(f"got {path} to write to; expected a name that ends in .svg or .png, or in neither.")
    stem = path.with_suffix("")
    stem.parent.mkdir(parents=True, exist_ok=True)
    svg, png = stem.with_suffix(".svg"), stem.with_suffix(".png")
    figure.savefig(svg, metadata={"Date": None, "Creator": "fedrbn", "Title": title})
    figure.savefig(png, dpi=200, metadata={"Software": None, "Title": title})
    return svg, png
