"""A profile of an AT user's round: docs/figures/profile.svg and .png, and profiling.json.

One user's 111 images in four batches, PGD-7, the paper's Digits network with fast kernels, one thread that keeps its
memory, as in a worker. Percentages refer to the profiler's self time, after a warm-up step.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from measuring import machine
from rounds import BATCH, IMAGES, STEPS, network, samples
from torch.profiler import ProfilerActivity, profile

from fedrbn import PGD, dual
from fedrbn.federated.client import batches, pixels
from fedrbn.federated.objectives import Adversarial
from fedrbn.federated.training.sgd import LocalTask, Sgd
from fedrbn.hardware import keep_memory
from fedrbn.nets.fast import fast

NAMES = {
    "aten::mkldnn_convolution": "convolutions, forward",
    "aten::convolution_backward": "convolutions, gradients",
    "mkldnn::_linear_pointwise": "large linear layer, all three products",
    "aten::bmm": "first convolution, gradient at the pixels",
    "aten::col2im": "first convolution, gradient at the pixels",
    "aten::addmm": "other linear layers",
    "aten::mm": "other linear layers",
    "aten::native_batch_norm": "batch norm",
    "aten::native_batch_norm_backward": "batch norm",
    "aten::max_pool2d_with_indices": "pooling",
    "aten::max_pool2d_with_indices_backward": "pooling",
    "aten::clamp_min": "ReLU",
    "aten::threshold_backward": "ReLU",
    "aten::cat": "joining and parting the two branches",
    "aten::slice": "joining and parting the two branches",
    "aten::sub_": "SGD's step",
}
"""Operators by purpose; all others are counted together."""
PRODUCTS = tuple(dict.fromkeys(list(NAMES.values())[:7]))


def round_of_an_at_user() -> Callable[[], object]:
    """One local epoch of adversarial training."""
    net = fast(dual(network())).train()
    data = samples(0)

    def run() -> object:
        random = torch.Generator().manual_seed(1)
        order = pixels(data, batches(IMAGES, BATCH, STEPS, random))
        return Sgd()(net, order, LocalTask(Adversarial(PGD()), 0.01, random))

    return run


def shares() -> dict[str, float]:
    """Each purpose's share of the time, largest first; everything else at the end."""
    run = round_of_an_at_user()
    run()
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        run()
    spent: dict[str, float] = {}
    for event in recorded.key_averages():
        purpose = NAMES.get(event.key, "everything else")
        spent[purpose] = spent.get(purpose, 0.0) + event.self_cpu_time_total
    total = sum(spent.values())
    ranked = sorted(spent, key=lambda name: (name != "everything else", spent[name]), reverse=True)
    return {name: spent[name] / total for name in ranked}


def draw(found: dict[str, float], folder: Path) -> None:
    """Horizontal bars; arithmetic in one colour, everything else in another."""
    plt.rcParams.update({"font.size": 9, "svg.hashsalt": "fedrbn", "svg.fonttype": "none"})
    figure, axes = plt.subplots(figsize=(7.2, 3.2), layout="constrained")
    colours = ["#2b6cb0" if name in PRODUCTS else "#c05621" for name in found]
    bars = axes.barh(list(found), [100 * share for share in found.values()], color=colours)
    axes.bar_label(bars, fmt="%.1f %%", padding=3)
    axes.invert_yaxis()
    axes.set(xlabel="share of the time, %", title="One round of an AT user (blue: convolutions and matrix products)")
    axes.spines[["top", "right"]].set_visible(False)
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / "profile.svg", metadata={"Date": None})
    figure.savefig(folder / "profile.png", dpi=150)
    plt.close(figure)


def main() -> None:
    """Measure, draw and print."""
    torch.set_num_threads(1)
    keep_memory()
    found = shares()
    print("\nOne round of an AT user, share of the time")
    for name, share in found.items():
        print(f"  {name:<44} {share:7.1%}")
    print(f"  {'convolutions and matrix products together':<44} {sum(found.get(name, 0) for name in PRODUCTS):7.1%}")
    here = Path(__file__)
    draw(found, here.parents[1] / "docs" / "figures")
    content = {"machine": machine(), "shares": found}
    here.with_suffix(".json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
