"""FATMeta's local training: first-order Per-FedAvg."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch

from fedrbn.federated.training.sgd import Batch, LocalTask, Losses, descend, gradient, trained
from fedrbn.nets.dual_bn import DualNet
from fedrbn.types import Tensors


@dataclass(frozen=True)
class Meta:
    """First-order Per-FedAvg (Fallah et al. 2020): trains weights that are good after one local step.

        w' = w − inner · ∇ℓ(w; first batch)        w ← w − lr · ∇ℓ(w'; second batch)

    Half of the batches adapt, the other half train; a last batch without a partner does both. `meta` is the learning
    rate of the second step at the start of training. Batch-norm statistics follow all batches.
    """

    inner: float = 0.02
    meta: float = 0.001

    def __call__(self, net: DualNet, batches: Iterable[Batch], task: LocalTask) -> tuple[Tensors, float]:
        """See `Training`. The mean loss is the loss of the adapted weights."""
        weights = trained(net)
        losses = Losses()
        for first, second in _pairs(batches):
            origin = [weight.detach().clone() for weight in weights]
            gradient(net, first, task.objective, task.generator)
            descend(weights, self.inner)
            losses.add(gradient(net, second, task.objective, task.generator))
            with torch.no_grad():
                for weight, value in zip(weights, origin, strict=True):
                    weight.copy_(value)
            descend(weights, task.lr)
        return task.memory, losses.mean()


def _pairs(batches: Iterable[Batch]) -> Iterator[tuple[Batch, Batch]]:
    rest = iter(batches)
    for first in rest:
        yield first, next(rest, first)
