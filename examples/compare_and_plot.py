"""Compare three methods, and plot robust accuracy over standard accuracy.

python examples/compare_and_plot.py [RESULTS_FOLDER]
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

import fedrbn

SETTINGS = {
    "data": {"name": "digits-mini", "domains": ["plain", "pen"]},
    "federation": {"users_per_domain": 2, "fraction": 0.1, "at": ["plain"], "test_samples": 20},
    "model": {"width": 0.125},
    "train": {"rounds": 2},
    "run": {"workers": 1},
}


def main(folder: Path) -> None:
    """Train what is not in the folder yet, print the table, and write the plot."""
    comparison = fedrbn.compare(SETTINGS, ["fedrbn", "fatbn", "fatavg"], store=folder)
    print(comparison)
    figure, ax = plt.subplots()
    for method, evaluations in comparison.rows.items():
        means = [evaluation["mean"] for evaluation in evaluations]
        ax.scatter([mean["sa"] for mean in means], [mean["ra"] for mean in means], label=method)
    ax.set(xlabel="standard accuracy", ylabel="robust accuracy (PGD-7, 8/255)")
    ax.legend()
    figure.savefig(folder / "accuracies.png")
    print(f"wrote {folder / 'accuracies.png'}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "compare_and_plot"))
