"""CPU seconds per training step: ours compared with the plain loop of reference.py, one thread each, as ratios.

The two are processes that take turns: the reference with the system's default allocator, ours as a worker of the
package. The paper's Digits network, batches of 32, random pixels. Writes steps.json.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from measuring import Actions, Row, matrix_rate, player, quickest, show, turns
from reference import Reference
from torch import Tensor
from torch.nn import functional as F

from fedrbn import PGD, dual
from fedrbn.federated.objectives import Adversarial, Calibrated, Objective, Standard, attacked
from fedrbn.federated.training.sgd import LocalTask, Sgd
from fedrbn.hardware import bfloat16_gain
from fedrbn.nets import build
from fedrbn.nets.dual_bn import DualNet
from fedrbn.nets.fast import fast
from fedrbn.nets.linear import with_onednn
from fedrbn.nets.precision import in_precision

BATCH, REPEATS, CLIP = 32, 5, 10.0
TARGETS = {"AT": 1.35, "PNC": 1.5, "PNC clipped": 1.2, "ST": None}
BFLOAT16_TARGETS = {"AT": 3.0}
CONV1, ALL = 64 * 75 * 784, 47_767_552
"""Multiplications and additions per image: of the first convolution and of the network."""
PRODUCTS = {
    "ST": 3 * ALL - CONV1,  # the gradient at the pixels is not needed
    "PNC": 2 * (3 * ALL - CONV1) - 2 * CONV1,  # the first convolution and its gradient are shared
    "PNC clipped": 2 * (3 * ALL - CONV1),
    "AT": 7 * 2 * ALL + 2 * (3 * ALL - CONV1),
}


def batch() -> tuple[Tensor, Tensor]:
    """Random pixels and labels."""
    return torch.rand(BATCH, 3, 28, 28, generator=torch.Generator().manual_seed(1)), torch.arange(BATCH) % 10


def network() -> torch.nn.Sequential:
    """The paper's Digits network."""
    return build("digits", 10, 1.0, (3, 28, 28), seed=1)


def plain_steps() -> Actions:
    """The reference's steps."""
    x, y = batch()
    reference, generator = Reference(network(), network(), lr=0.01), torch.Generator().manual_seed(1)
    return {
        "ST": lambda: reference.standard(x, y),
        "PNC": lambda: reference.calibrated(x, y, 0.5),
        "PNC clipped": lambda: reference.clipped(x, y, 0.5, CLIP),
        "AT": lambda: reference.adversarial(x, y, generator),
    }


def our_steps() -> Actions:
    """The package's steps, its attack alone, and only the kernels of that attack."""
    net = fast(dual(network())).train()
    x, y = batch()
    generator = torch.Generator().manual_seed(1)
    return _steps(net) | {
        "attack": lambda: attacked(PGD(), net, x, y, generator),
        "kernels": attack_kernels(),
    }


def our_steps_in_bfloat16() -> Actions:
    """The package's steps with run.precision = "bfloat16"."""
    return _steps(in_precision(fast(dual(network())).train(), torch.bfloat16))


def _steps(net: DualNet) -> Actions:
    given, generator = [batch()], torch.Generator().manual_seed(1)
    objectives: dict[str, Objective] = {
        "ST": Standard(),
        "PNC": Calibrated(0.5),
        "PNC clipped": Calibrated(0.5, CLIP),
        "AT": Adversarial(PGD()),
    }

    def step(objective: Objective) -> Callable[[], object]:
        return lambda: Sgd()(net, given, LocalTask(objective, 0.01, generator))

    return {kind: step(objective) for kind, objective in objectives.items()}


def attack_kernels() -> Callable[[], None]:
    """Only the convolutions and matrix products of PGD-7: forward, and the gradients at their inputs."""
    layers = dict(fast(dual(network())).requires_grad_(False).named_modules())
    sides = {"conv1": 28, "conv2": 14, "conv3": 7}
    work: list[tuple[Callable[[Tensor], Tensor], Tensor]] = []
    for name, side in sides.items():
        layer = layers[f"network.{name}"]
        pixels = torch.rand(BATCH, layer.in_channels, side, side)
        work.append((layer, pixels if name == "conv1" else pixels.to(memory_format=torch.channels_last)))
    for name in ("fc1", "fc2", "fc3"):
        work.append((layers[f"network.{name}"], torch.rand(BATCH, layers[f"network.{name}"].in_features)))

    def run() -> None:
        for _ in range(7):
            for layer, inputs in work:
                output = layer(inputs.requires_grad_())
                torch.autograd.grad(output, inputs, torch.empty_like(output))

    return run


def linear_layers() -> dict[str, float]:
    """Milliseconds of the large linear layer's three products: with BLAS and with oneDNN."""
    layer = torch.nn.Linear(6272, 2048)
    found = {}
    for name, each in (("BLAS", layer), ("oneDNN", with_onednn(layer))):
        x = torch.rand(BATCH, 6272, requires_grad=True)
        found[name] = 1e3 * quickest(lambda each=each, x=x: F.relu(each(x)).sum().backward())
    return found


def main() -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    rate = matrix_rate()
    with player(plain_steps, keep=False) as theirs, player(our_steps, keep=True) as ours:
        times = {kind: turns((theirs, ours), kind, REPEATS) for kind in TARGETS}
        attack, kernels = (turns((ours,), what, REPEATS)[0] for what in ("attack", "kernels"))
    bfloat16, bfloat16_rate = dict[str, float](), None
    if bfloat16_gain():
        bfloat16_rate = matrix_rate(dtype=torch.bfloat16)
        with player(our_steps_in_bfloat16, keep=True) as halved:
            bfloat16 = {kind: turns((halved,), kind, REPEATS)[0] for kind in TARGETS}
    rows = [Row(f"{kind} step, times the plain loop", a / b, "x", TARGETS[kind]) for kind, (a, b) in times.items()]
    rows.append(Row("attack, times its bare kernels", attack / kernels, "x", 1 / 0.85, "less"))
    rows += [
        Row(f"{kind} step, share of the matrix rate", 2 * BATCH * PRODUCTS[kind] / rate / ours_, "")
        for kind, (_, ours_) in times.items()
    ]
    rows += [
        Row(
            f"{kind} step in bfloat16, times the plain loop",
            times[kind][0] / bfloat16[kind] if kind in bfloat16 else None,
            "x",
            BFLOAT16_TARGETS.get(kind),
        )
        for kind in times
    ]
    rows += [
        Row(
            f"{kind} step in bfloat16, share of its matrix rate",
            2 * BATCH * PRODUCTS[kind] / bfloat16_rate / bfloat16[kind] if bfloat16_rate else None,
        )
        for kind in times
    ]
    milliseconds = {
        kind: {"plain": 1e3 * a, "ours": 1e3 * b} | ({"bfloat16": 1e3 * bfloat16[kind]} if kind in bfloat16 else {})
        for kind, (a, b) in times.items()
    }
    show(
        f"Training steps (Digits network, batch {BATCH}, one thread, CPU time)",
        rows,
        Path(__file__).with_suffix(".json"),
        milliseconds=milliseconds | {"attack": 1e3 * attack, "its kernels": 1e3 * kernels, "fc1": linear_layers()},
        gigaflops=rate / 1e9,
        bfloat16_gigaflops=bfloat16_rate and bfloat16_rate / 1e9,
    )
    for kind, each in milliseconds.items():
        print(f"  {kind:<12}", "   ".join(f"{name} {figure:7.1f}" for name, figure in each.items()), "ms")
    print(f"  matrix rate {rate / 1e9:.0f} GF/s; attack {1e3 * attack:.0f} ms, its kernels {1e3 * kernels:.0f} ms")


if __name__ == "__main__":
    main()
