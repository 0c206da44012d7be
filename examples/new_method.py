"""Write a new method: FATBN whose ST clients train on noisy images. Compare it with FATBN.

python examples/new_method.py [RESULTS_FOLDER]
"""

import sys
from dataclasses import dataclass, replace

import torch
from torch.nn import functional as F

import fedrbn
from fedrbn.federated.methods import fatbn
from fedrbn.nets.dual_bn import DualNet
from fedrbn.types import Branch, Stats


@dataclass(frozen=True)
class Noisy:
    """The loss of ST clients: cross-entropy on images with Gaussian noise."""

    std: float = 0.05

    def __call__(self, net: DualNet, x: torch.Tensor, y: torch.Tensor, generator: torch.Generator) -> float:
        """Add the gradients of one batch to the parameters and return its loss."""
        noised = (x + self.std * torch.randn(x.shape, generator=generator)).clamp(0, 1)
        loss = F.cross_entropy(net(noised, Branch.CLEAN, Stats.BATCH), y)
        loss.backward()
        return loss.item()


def noisy_fatbn(attack: fedrbn.PGD) -> fedrbn.Method:
    """The method: FATBN with another loss for ST clients."""
    return replace(fatbn(attack), name="noisy-fatbn", st=Noisy())


SETTINGS = {
    "data": {"name": "digits-mini", "domains": ["plain", "pen"]},
    "federation": {"users_per_domain": 2, "fraction": 0.1, "at": ["plain"], "test_samples": 20},
    "model": {"width": 0.125},
    "train": {"rounds": 2},
    "run": {"workers": 1},
}

if __name__ == "__main__":
    store = sys.argv[1] if len(sys.argv) > 1 else "new_method"
    print(fedrbn.compare(SETTINGS, ["new_method:noisy_fatbn", "fatbn"], store=store))
