"""The work of all contenders: the same images, initial weights and order of batches, in one file.

A contender is a module with `train(work, method, tell)`: it trains `work.rounds` rounds, calls `tell()` after each, and
returns the network of every domain. `contend.py` runs one in a separate process.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from fedrbn.nets.digits import digits_cnn

BATCH, LR = 32, 0.01
State: TypeAlias = dict[str, Tensor]
Tell: TypeAlias = Callable[[], None]
Train: TypeAlias = Callable[["Work", str, Tell], list[State]]


@dataclass(frozen=True)
class Work:
    """Images as float pixels in [0, 1], by domain; `order[r][d]` are the indices of domain d in round r."""

    images: list[Tensor]
    labels: list[Tensor]
    test_images: list[Tensor]
    test_labels: list[Tensor]
    order: list[list[Tensor]]
    initial: State
    width: float

    @property
    def rounds(self) -> int:
        """The number of rounds; the first one is the warm-up."""
        return len(self.order)

    def network(self) -> nn.Sequential:
        """An ordinary network with the initial weights."""
        net = digits_cnn(10, self.width)
        net.load_state_dict(self.initial)
        return net

    def batches(self, round_: int, domain: int) -> list[Tensor]:
        """Indices of each batch; the last batch is never a single image."""
        return list(self.order[round_][domain].split(BATCH))


def write(path: Path, work: dict[str, Any], width: float) -> None:
    """Write tensors by the names that `read` expects."""
    save_file({name: tensor.contiguous() for name, tensor in work.items()}, path, metadata={"width": str(width)})


def read(path: Path) -> Work:
    """Read what `write` has written."""
    with safe_open(path, framework="pt") as file:
        found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        width = float(file.metadata()["width"])
    domains = range(sum(name.startswith("labels/") for name in found))
    rounds = range(sum(name.endswith("/0") and name.startswith("order/") for name in found))
    return Work(
        images=[found[f"images/{d}"].float() / 255 for d in domains],
        labels=[found[f"labels/{d}"] for d in domains],
        test_images=[found[f"test_images/{d}"].float() / 255 for d in domains],
        test_labels=[found[f"test_labels/{d}"] for d in domains],
        order=[[found[f"order/{r}/{d}"] for d in domains] for r in rounds],
        initial={name.removeprefix("initial/"): t for name, t in found.items() if name.startswith("initial/")},
        width=width,
    )


def is_batch_norm(name: str) -> bool:
    """Whether a tensor of this network belongs to batch norm, by the layer names of `digits_cnn`."""
    return name.startswith("bn")


def shared_names(net: nn.Module, method: str) -> list[str]:
    """What is averaged: every float tensor with FedAvg, all except batch norm with FedBN."""
    floats = [name for name, tensor in net.state_dict().items() if tensor.is_floating_point()]
    return [name for name in floats if method == "fedavg" or not is_batch_norm(name)]


@torch.no_grad()
def accuracy(work: Work, states: list[State]) -> float:
    """SA: the share of test images that each domain's network classifies correctly, averaged over domains."""
    net, right = work.network().eval(), []
    for state, x, y in zip(states, work.test_images, work.test_labels, strict=True):
        net.load_state_dict(state, strict=False)  # not all contenders exchange batch counters
        right.append((net(x).argmax(1) == y).float().mean())
    return float(torch.stack(right).mean())
