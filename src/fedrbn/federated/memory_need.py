"""Estimates the memory that a run needs before it starts; if it does not fit, the error suggests a remedy.

    program + process · processes + images + the larger of
      training     tensors · (11 + 4 · workers) + 2 · workers · 2 · batch size · activations
      evaluation   tensors · (4 + 2 · workers) + 2 · workers · images at once · activations

`tensors` are the bytes of the network's weights and statistics; a gradient takes as much. `activations` are the bytes
that one image stores for the backward pass; their gradients take as much again. A step of adversarial training joins
clean and attacked images. An evaluation joins the images of all clients, up to 128 at once, in memory that training
has freed. The length of an attack does not count: each step frees the memory of the step before it.

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
"""Private bytes of a process that has imported PyTorch and this package and has made one step."""
_PROGRAM = 110 * 2**20
"""Bytes of PyTorch's program files in memory, which all processes share."""
_SERVER_COPIES = 11
"""Copies of the network's tensors in the main process: fitted to measured peaks, not counted one by one.

Among them are the network and its fast form, the shared weights, their next mean, an upload, the best state and the
checkpoint being written. The rest is memory that the allocator keeps.
"""
_EVALUATING_SERVER_COPIES = 4
"""The network and its fast form, the shared weights and the best state."""
_WORKER_COPIES = 4
"""Copies of the network's tensors per worker: its network, the received weights, gradients, its upload."""
_EVALUATING_WORKER_COPIES = 2
"""Its network and the received weights."""
_WORKSPACE = 2
"""Gradients of activations and the kernels' scratch memory, as a multiple of the activations themselves."""
_EVALUATION_BATCH = 128
"""Images that are attacked at once in an evaluation, of one client or several; see `executors.lockstep`."""


@dataclass(frozen=True)
class MemoryNeed:
    """Bytes that a run needs, by purpose."""

    weights: int
    """All copies of the network's tensors."""
    activations: int
    """Activations of the batches in all workers."""
    images: int
    """All clients' data."""
    processes: int
    """Python and PyTorch in every process, program files once."""

    @property
    def total(self) -> int:
        """The sum."""
        return self.weights + self.activations + self.images + self.processes


def of_weights(size: int, workers: int) -> int:
    """Bytes of all copies in training, if the tensors take `size` bytes; a single worker is the main process itself."""
    return size * (_SERVER_COPIES + _WORKER_COPIES * workers)


def of_run(net: DualNet, federation: Federation, batch: int, workers: int) -> MemoryNeed:
    """The memory for training and evaluating this network, with this batch size and number of workers."""
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
    """Bytes that one image stores for the backward pass, measured with two images."""
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
        logits = trial(x, Branch.CLEAN, Stats.BATCH)  # noqa: F841  (kept alive, so that no memory is reused)
    return sum(kept.values()) // 2


def ensure_fits(needed: int, what: str, remedy: str) -> None:
    """Raise an error if more memory is needed than is free, on systems that report free memory."""
    free = available_memory()
    if free is None or needed <= free:
        return
    raise HardwareError(
        f"got {what}, which needs about {gigabytes(needed)} of memory; expected at most the {gigabytes(free)} that are "
        f"free. {remedy}"
    )


def gigabytes(count: int) -> str:
    """A human-readable number of bytes."""
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"
