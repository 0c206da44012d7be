"""Estimates the memory that a run needs before it starts; if it does not fit, the error suggests a remedy."""

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

_PROCESS = 220 * 2**20
"""Bytes of a process that has only imported PyTorch."""
_SERVER_COPIES = 4
"""Copies of the network's tensors in the main process: the network, shared weights, their next mean, a checkpoint."""
_WORKER_COPIES = 4
"""Copies of the network's tensors per worker: its network, the received weights, gradients, its upload."""
_WORKSPACE = 2
"""Gradients of activations and the kernels' scratch memory, as a multiple of the activations themselves."""
_EVALUATION_BATCH = 128
"""Images that an evaluation attacks at once; see `evaluation.accuracy`."""


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
    """Python and PyTorch in every process."""

    @property
    def total(self) -> int:
        """The sum."""
        return self.weights + self.activations + self.images + self.processes


def of_weights(size: int, workers: int) -> int:
    """Bytes of all copies of a network whose tensors take `size` bytes; a single worker is the main process itself."""
    return size * (_SERVER_COPIES + _WORKER_COPIES * workers)


def of_run(net: DualNet, federation: Federation, batch: int, workers: int) -> MemoryNeed:
    """The memory for training and evaluating this network, with this batch size and number of workers."""
    parts = [part for c in federation.clients for part in (c.train, c.validation, c.test)]
    tested = max(len(part) for c in federation.clients for part in (c.validation, c.test))
    at_once = max(2 * batch, min(_EVALUATION_BATCH, tested))  # training puts clean and attacked images in one pass
    return MemoryNeed(
        weights=of_weights(sum(tensor.nbytes for tensor in net.state_dict().values()), workers),
        activations=_WORKSPACE * workers * at_once * activations(net, federation.image_shape),
        images=sum(part.images.nbytes + part.labels.nbytes for part in parts),
        processes=_PROCESS * (1 if workers == 1 else workers + 1),
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
