"""What a run needs of this machine's memory, reckoned before it starts; what cannot fit is refused with a remedy.

    program + process · processes + images + the larger of
      training     tensors · (11 + 4 · workers) + 2 · workers · 2 · batch size · activations
      evaluation   tensors · (4 + 2 · workers) + 2 · workers · images at once · activations

`tensors` are the bytes of the network's weights and statistics; a gradient takes as much. `activations` are the bytes
that one image leaves for the backward pass; their gradients take as much again. A step of adversarial training joins
clean and attacked images. An evaluation joins the images of all clients, up to 128 at once, in memory that training
has freed. The length of an attack does not count: each step frees what the one before kept.

`benchmarks/memory.py` compares this with the peak of real runs.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor

from fedrbn.data.memory_limit import available_memory
from fedrbn.data.samples import Federation
from fedrbn.errors import HardwareError
from fedrbn.nets.dual_bn import DualNet
from fedrbn.types import Branch, Stats

_PROCESS = 165 * 2**20
"""Bytes of its own of a process that has imported PyTorch and this package and has made one step."""
_PROGRAM = 110 * 2**20
"""Bytes of PyTorch's program files in memory, which all processes share."""
_SERVER_COPIES = 11
"""Of the network's tensors in the main process, fitted to measured peaks and not counted one by one.

Among them are the structure and its fast form, the shared weights, their next mean, an upload, the best state and a
checkpoint on its way; the rest is memory that the allocator keeps.
"""
_EVALUATING_SERVER_COPIES = 4
"""The structure and its fast form, the shared weights and the best state."""
_WORKER_COPIES = 4
"""Of the network's tensors for each worker: its own, the weights it was sent, gradients, its upload."""
_EVALUATING_WORKER_COPIES = 2
"""Its own, and the weights it was sent."""
_WORKSPACE = 2
"""Gradients of activations and the kernels' scratch memory, as a multiple of the activations themselves."""
_EVALUATION_BATCH = 128
"""Images that are attacked at once in an evaluation, of one client or several; see `executors.lockstep`."""


@dataclass(frozen=True)
class MemoryNeed:
    """Bytes that a run needs, and what of."""

    weights: int
    """All copies of the network's tensors."""
    activations: int
    """What batches leave on their way through the network, in all workers."""
    images: int
    """All clients' data."""
    processes: int
    """Python and PyTorch in every process, program files once."""

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.activations + self.images + self.processes


def of_weights(size: int, workers: int) -> int:
    """Bytes of all copies in training of a network whose tensors take `size`; one worker is the main process itself."""
    return size * (_SERVER_COPIES + _WORKER_COPIES * workers)


def of_run(net: DualNet, federation: Federation, batch: int, workers: int) -> MemoryNeed:
    """What training and evaluating this network takes, with so many images per step and so many workers."""
    parts = [part for c in federation.clients for part in (c.train, c.validation, c.test)]
    tested = max(sum(len(c.validation) for c in federation.clients), sum(len(c.test) for c in federation.clients))
    size = sum(tensor.nbytes for tensor in net.state_dict().values())
    image = _WORKSPACE * workers * activations(net, federation.image_shape)
    training = (of_weights(size, workers), image * 2 * batch)
    evaluation = (
        size * (_EVALUATING_SERVER_COPIES + _EVALUATING_WORKER_COPIES * workers),
        image * min(_EVALUATION_BATCH, tested),
    )
    weights, passes = max(training, evaluation, key=sum)
    return MemoryNeed(
        weights=weights,
        activations=passes,
        images=sum(part.images.nbytes + part.labels.nbytes for part in parts),
        processes=_PROGRAM + _PROCESS * (1 if workers == 1 else workers + 1),
    )


def activations(net: DualNet, image_shape: tuple[int, int, int]) -> int:
    """Bytes that one image leaves for the backward pass, measured with two."""
    trial = copy.deepcopy(net).train()
    own = {tensor.untyped_storage().data_ptr() for tensor in trial.state_dict().values()}
    kept: dict[int, int] = {}

    def count(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    x = torch.zeros(2, *image_shape, device=next(net.parameters()).device)
    with torch.random.fork_rng(devices=[]), torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        logits = trial(x, Branch.CLEAN, Stats.BATCH)  # noqa: F841  (held, so that no place is used twice)
    return sum(kept.values()) // 2


def ensure_fits(needed: int, what: str, remedy: str) -> None:
    """Refuse what needs more memory than is free, where the system says how much that is."""
    free = available_memory()
    if free is None or needed <= free:
        return
    raise HardwareError(
        f"got {what}, which needs about {gigabytes(needed)} of memory; expected at most the {gigabytes(free)} that are "
        f"free. {remedy}"
    )


def gigabytes(count: int) -> str:
    """A number of bytes for people."""
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"
