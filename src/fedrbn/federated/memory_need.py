"""What a run needs of this machine's memory, reckoned before it starts; what cannot fit is refused with a remedy."""

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
"""Bytes of a process that has imported PyTorch, before it does anything."""
_SERVER_COPIES = 4
"""Of the network's tensors in the main process: structure, shared weights, their next mean, a checkpoint on its way."""
_WORKER_COPIES = 4
"""Of the network's tensors for each worker: its own, the weights it was sent, gradients, its upload."""
_WORKSPACE = 2
"""Gradients of activations and the kernels' scratch memory, as a multiple of the activations themselves."""
_EVALUATION_BATCH = 128
"""Images that are attacked at once in an evaluation; see `evaluation.accuracy`."""


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
    """Python and PyTorch in every process."""

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.activations + self.images + self.processes


def of_weights(size: int, workers: int) -> int:
    """Bytes of all copies of a network whose tensors take `size`; one worker is the main process itself."""
    return size * (_SERVER_COPIES + _WORKER_COPIES * workers)


def of_run(net: DualNet, federation: Federation, batch: int, workers: int) -> MemoryNeed:
    """What training and evaluating this network takes, with so many images per step and so many workers."""
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
