"""Draw the idea of FedRBN: docs/figures/idea.svg and idea.png.

python tools/drawing.py
"""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

OUT = Path(__file__).parents[1] / "docs" / "figures"
CLEAN, NOISED, SHARED, INK = "#4477aa", "#cc6644", "#dddddd", "#222222"


def box(ax: Axes, x: float, y: float, width: float, height: float, colour: str, text: str, **style: object) -> None:
    """A labelled box with its lower left corner at (x, y)."""
    shape = FancyBboxPatch((x, y), width, height, boxstyle="round,pad=0,rounding_size=0.08", fc=colour, ec=INK, lw=1)
    ax.add_patch(shape)
    if style.pop("dashed", False):
        shape.set_linestyle("--")
    ax.text(x + width / 2, y + height / 2, text, ha="center", va="center", fontsize=10, **style)  # type: ignore[arg-type]


def client(ax: Axes, x: float, title: str, about: str, estimated: bool) -> None:
    """A client's network: shared layers, BN_c, and its own or an estimated BN_a."""
    box(ax, x, 0.4, 3.6, 2.9, "white", "")
    ax.text(x + 1.8, 3.05, title, ha="center", va="center", fontsize=11, weight="bold")
    ax.text(x + 1.8, 2.72, about, ha="center", va="center", fontsize=9)
    box(ax, x + 0.3, 1.75, 3.0, 0.6, SHARED, "shared weights")
    clean, noised = (x + 1.9, x + 0.3) if estimated else (x + 0.3, x + 1.9)
    box(ax, clean, 0.75, 1.4, 0.7, CLEAN, "BN_c\nclean", color="white")
    if estimated:
        box(ax, noised, 0.75, 1.4, 0.7, "#e8b9a6", "BN_a\nestimated", dashed=True, color=INK)
    else:
        box(ax, noised, 0.75, 1.4, 0.7, NOISED, "BN_a\nattacked", color="white")


def arrow(ax: Axes, start: tuple[float, float], end: tuple[float, float], colour: str, bend: float, head: str) -> None:
    """A curved arrow."""
    style = {"arrowstyle": head, "mutation_scale": 16, "lw": 2, "color": colour}
    ax.add_patch(FancyArrowPatch(start, end, connectionstyle=f"arc3,rad={bend}", **style))


def draw() -> None:
    """The server above an AT and an ST client, and the three things that they exchange."""
    mpl.rcParams |= {"font.family": "DejaVu Sans", "svg.hashsalt": "fedrbn", "svg.fonttype": "none"}
    figure, ax = plt.subplots(figsize=(9.4, 5.6))
    ax.set(xlim=(0, 10.4), ylim=(-0.85, 5.5))
    ax.axis("off")
    client(ax, 0.3, "AT client (few)", "trains on clean and attacked images", estimated=False)
    client(ax, 6.5, "ST client (most)", "trains on clean images only", estimated=True)
    box(ax, 2.95, 4.35, 4.5, 0.85, SHARED, "server: averages the shared weights\n(batch norm stays with its client)")
    arrow(ax, (2.1, 3.35), (3.6, 4.3), INK, -0.15, "<|-|>")
    arrow(ax, (6.8, 4.3), (8.3, 3.35), INK, -0.15, "<|-|>")
    arrow(ax, (3.65, 1.1), (6.75, 1.1), NOISED, 0.0, "-|>")
    ax.text(5.2, 1.32, "1  propagation", ha="center", color=NOISED, fontsize=10, weight="bold")
    ax.text(5.2, 0.62, "weighted by how\nsimilar the clients'\nBN_c are", ha="center", va="center", fontsize=9)
    ax.text(8.3, -0.02, "2  calibration: clean images through BN_c and the frozen BN_a,", ha="center", fontsize=9)
    ax.text(8.3, -0.31, "so the shared weights learn to work with both", ha="center", fontsize=9)
    ax.text(2.1, 0.1, "about 8 times the cost of standard training", ha="center", fontsize=9)
    ax.text(5.2, -0.72, "3  every client predicts through its BN_a, even if it never made an attacked image",
            ha="center", fontsize=10)  # fmt: skip
    OUT.mkdir(parents=True, exist_ok=True)
    figure.savefig(OUT / "idea.svg", bbox_inches="tight", metadata={"Date": None})
    figure.savefig(OUT / "idea.png", bbox_inches="tight", dpi=110, metadata={"Software": None})
    plt.close(figure)


if __name__ == "__main__":
    draw()
