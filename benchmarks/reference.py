"""The method's training steps as everybody would write them first: an oracle for numbers and a baseline for speed.

Two ordinary batch-norm networks share their weights; each pass is separate; the attack differentiates the input with
the parameters frozen. Nothing here is used by the package.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def pgd(
    net: nn.Module, x: Tensor, y: Tensor, generator: torch.Generator, eps: float, steps: int, step: float
) -> Tensor:
    """PGD with a random start, in pixels; the network is in eval mode meanwhile."""
    net.eval()
    for parameter in net.parameters():
        parameter.requires_grad_(False)
    noise = (2 * torch.rand(x.shape, generator=generator) - 1) * eps
    adversarial = (x + noise).clamp(0, 1)
    for _ in range(steps):
        adversarial.requires_grad_(True)
        loss = F.cross_entropy(net(adversarial), y, reduction="sum")
        loss.backward()
        with torch.no_grad():
            adversarial = adversarial + step * adversarial.grad.sign()
            adversarial = torch.min(torch.max(adversarial, x - eps), x + eps).clamp(0, 1)
    for parameter in net.parameters():
        parameter.requires_grad_(True)
    net.train()
    return adversarial.detach()


class Reference:
    """A clean and a noised network that share every parameter; only their batch-norm statistics differ."""

    def __init__(self, clean: nn.Module, noised: nn.Module, lr: float) -> None:
        own = dict(clean.named_parameters())
        for name, module in noised.named_modules():
            for key in list(module._parameters):
                if module._parameters[key] is not None:
                    module._parameters[key] = own[f"{name}.{key}".lstrip(".")]
        self.clean, self.noised = clean.train(), noised.train()
        self.optimizer = torch.optim.SGD(clean.parameters(), lr=lr)

    def standard(self, x: Tensor, y: Tensor) -> float:
        """One step of standard training."""
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.clean(x), y)
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def adversarial(self, x: Tensor, y: Tensor, generator: torch.Generator) -> float:
        """One step of adversarial training with PGD-7 at 8/255."""
        noised = pgd(self.noised, x, y, generator, 8 / 255, 7, 2 / 255)
        self.optimizer.zero_grad()
        loss = (F.cross_entropy(self.clean(x), y) + F.cross_entropy(self.noised(noised), y)) / 2
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def calibrated(self, x: Tensor, y: Tensor, lam: float) -> float:
        """One step of Eq. 5 with frozen statistics of the noised network."""
        self.optimizer.zero_grad()
        clean = F.cross_entropy(self.clean(x), y)
        noised = F.cross_entropy(self.noised.eval()(x), y)
        loss = (1 - lam) * clean + lam * noised
        loss.backward()
        self.optimizer.step()
        return loss.item()
