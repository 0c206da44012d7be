"""The method in its most direct form: a reference for numbers and a baseline for speed.

Two ordinary batch-norm networks share their weights; each pass is separate; the attack differentiates the input with
the parameters frozen; users train one after another. Nothing here is used by the package.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

State = dict[str, Tensor]


def pgd(
    net: nn.Module, x: Tensor, y: Tensor, generator: torch.Generator, eps: float, steps: int, step: float
) -> Tensor:
    """PGD with a random start, in pixels; the network is in eval mode during the attack."""
    net.eval()
    for parameter in net.parameters():
        parameter.requires_grad_(False)
    noise = (2 * torch.rand(x.shape, generator=generator, dtype=x.dtype) - 1) * eps
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

    def clipped(self, x: Tensor, y: Tensor, lam: float, largest: float) -> float:
        """One step of Algorithm 3: the gradient of the second term is clipped before the first is added."""
        self.optimizer.zero_grad()
        noised = lam * F.cross_entropy(self.noised.eval()(x), y)
        noised.backward()
        torch.nn.utils.clip_grad_norm_(self.clean.parameters(), largest)
        clean = (1 - lam) * F.cross_entropy(self.clean(x), y)
        clean.backward()
        self.optimizer.step()
        return noised.item() + clean.item()


@dataclass
class User:
    """One user: its data as pixels in [0, 1], and its local batch norm."""

    adversarial: bool
    x: Tensor
    y: Tensor
    clean: State
    """BN_c, with the trainable w, b."""
    noised: State
    """BN_a's statistics."""


def norm_state(net: nn.Module) -> State:
    """Copies of all tensors of batch norm."""
    return {
        f"{name}.{key}": value.detach().clone()
        for name, module in net.named_modules()
        if isinstance(module, nn.modules.batchnorm._BatchNorm)
        for key, value in module.state_dict().items()
    }


def weights(net: nn.Module) -> State:
    """Copies of θ: everything except batch norm."""
    own = norm_state(net)
    return {name: value.detach().clone() for name, value in net.state_dict().items() if name not in own}


def update(
    reference: Reference,
    theta: State,
    user: User,
    order: Sequence[Tensor],
    generator: torch.Generator,
    lam: float | None,
) -> tuple[State, State, State]:
    """One user's local epoch on batches with these indices: its θ, BN_c and BN_a afterwards. λ None is plain ST."""
    reference.clean.load_state_dict(theta | user.clean)
    statistics = {name: value for name, value in user.noised.items() if not name.endswith(("weight", "bias"))}
    reference.noised.load_state_dict(statistics, strict=False)
    for index in order:
        x, y = user.x[index], user.y[index]
        if user.adversarial:
            reference.adversarial(x, y, generator)
        elif lam is None:
            reference.standard(x, y)
        else:
            reference.calibrated(x, y, lam)
    return weights(reference.clean), norm_state(reference.clean), norm_state(reference.noised)


def finish(users: Sequence[User], results: Sequence[tuple[State, State, State]], temperature: float = 0.01) -> State:
    """The server's part: users keep their batch norm, θ is the mean by samples, ST users get an estimated BN_a."""
    total = sum(len(user.y) for user in users)
    theta = {
        name: sum(len(user.y) / total * result[0][name] for user, result in zip(users, results, strict=True))
        for name in results[0][0]
    }
    for user, (_, clean, noised) in zip(users, results, strict=True):
        user.clean = clean
        if user.adversarial:
            user.noised = noised
    donors = [user for user in users if user.adversarial]
    for user in users:
        if not user.adversarial:
            similar = torch.stack([_similarity(user.clean, donor.clean) for donor in donors])
            alpha = torch.softmax(similar / temperature, 0)
            for name in user.noised:
                if name.endswith(("running_mean", "running_var")):
                    user.noised[name] = sum(a * d.noised[name] for a, d in zip(alpha, donors, strict=True)).to(
                        user.noised[name].dtype
                    )
    return theta


def _similarity(one: State, other: State) -> Tensor:
    """Eq. 4: the mean cosine of clean means and variances over layers."""
    names = [name for name in one if name.endswith(("running_mean", "running_var"))]
    return torch.stack([F.cosine_similarity(one[n].double(), other[n].double(), dim=0) for n in names]).mean()


def whole_round(
    reference: Reference,
    theta: State,
    users: Sequence[User],
    order: Callable[[int], Sequence[Tensor]],
    generator: Callable[[int], torch.Generator],
    lam: float | None,
) -> State:
    """One round: users one after another, then the server's part. `order` and `generator` take a user's index."""
    results = [update(reference, theta, user, order(i), generator(i), lam) for i, user in enumerate(users)]
    return finish(users, results)
