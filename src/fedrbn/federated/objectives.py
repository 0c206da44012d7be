"""What a client minimises on one batch: Algorithm 1's losses for AT and ST users, and the PNC loss (Eq. 5).

An objective is a value. Called with a network and a batch, it adds the gradient of its loss to the parameters'
`.grad` and returns the loss. The objective also decides which statistics are updated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, TypeAlias, cast

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from fedrbn.attacks import PGD, Attack
from fedrbn.errors import ConfigError
from fedrbn.nets.dual_bn import DualNet
from fedrbn.nets.precision import as_now
from fedrbn.types import Branch, Stats


class Objective(Protocol):
    """One batch's loss and gradient."""

    def __call__(self, net: DualNet, x: Tensor, y: Tensor, generator: Generator) -> float:
        """Add the gradient on pixels x and labels y to the parameters' `.grad`; return the loss."""
        ...


@dataclass(frozen=True)
class Standard:
    """Standard training: ℓ_CE(f(x; BN_c), y). Moves BN_c."""

    def __call__(self, net: DualNet, x: Tensor, y: Tensor, generator: Generator) -> float:  # noqa: ARG002
        """See `Objective`."""
        loss = F.cross_entropy(net(x, Branch.CLEAN, Stats.BATCH), y)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.item()


@dataclass(frozen=True)
class Adversarial:
    """Adversarial training, Algorithm 1 line 6: ½ {ℓ_CE(f(x; BN_c), y) + ℓ_CE(f(x̃; BN_a), y)}. Moves both branches.

    x̃ is found through BN_a with its running statistics frozen, so the attack itself moves nothing.
    """

    attack: Attack

    def __call__(self, net: DualNet, x: Tensor, y: Tensor, generator: Generator) -> float:
        """See `Objective`."""
        return mean_of_both(net, x, attacked(self.attack, net, x, y, generator), y)


def mean_of_both(net: DualNet, x: Tensor, noised: Tensor, y: Tensor) -> float:
    """½ {ℓ_CE(f(x; BN_c), y) + ℓ_CE(f(x̃; BN_a), y)}: adds its gradient, moves both branches, returns it."""
    clean_logits, noised_logits = net.paired(x, noised, Stats.BATCH, Stats.BATCH)
    loss = (F.cross_entropy(clean_logits, y) + F.cross_entropy(noised_logits, y)) / 2
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.item()


@dataclass(frozen=True)
class Calibrated:
    """Eq. 5, pseudo-noise calibration: (1 − λ) ℓ_CE(f(x; BN_c), y) + λ ℓ_CE(f(x; BN_a), y). Moves BN_c only.

    BN_a is the estimate of Eq. 3 and stays frozen; the gradient still reaches θ through it. With `clip` (Algorithm 3)
    the gradient of the second term is scaled down to that norm before the first is added.
    """

    lam: float
    clip: float | None = None

    def __call__(self, net: DualNet, x: Tensor, y: Tensor, generator: Generator) -> float:
        """See `Objective`. Each λ takes the cheapest path that it allows."""
        if self.lam == 0:
            return Standard()(net, x, y, generator)
        if self.lam < 1 and self.clip is None:
            return self._joined(net, x, y)
        calibration = self.lam * F.cross_entropy(net(x, Branch.NOISED, Stats.FROZEN), y)
        calibration.backward()  # type: ignore[no-untyped-call]
        if self.clip is not None:
            clamp(net.parameters(), self.clip)
        if self.lam == 1:  # BN_c's statistics still follow the data, but a loss with weight 0 needs no backward
            with torch.no_grad():
                net(x, Branch.CLEAN, Stats.BATCH)
            return calibration.item()
        clean = (1 - self.lam) * F.cross_entropy(net(x, Branch.CLEAN, Stats.BATCH), y)
        clean.backward()  # type: ignore[no-untyped-call]
        return calibration.item() + clean.item()

    def _joined(self, net: DualNet, x: Tensor, y: Tensor) -> float:
        clean_logits, noised_logits = net.paired(x, x, Stats.BATCH, Stats.FROZEN)
        clean, noised = F.cross_entropy(clean_logits, y), F.cross_entropy(noised_logits, y)
        loss = (1 - self.lam) * clean + self.lam * noised
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.item()


@dataclass(frozen=True)
class OneStep:
    """Ours, fedrbn+: calibration on attacked images at the cost of PNC. Moves both branches.

        (1 − λ) ℓ_CE(f(x; BN_c), y) + λ ℓ_CE(f(x̃; BN_a), y),     x̃ = clip(x + ε sign ∇_x ℓ_CE(f(x; BN_c), y))

    The backward pass of the first term, which the weights need anyway, also gives ∇_x: one attack step at no extra
    cost. BN_a normalises by the statistics of the attacked batch itself, which keeps gradients small without
    clipping. Compared with PNC, this adds the gradient at the pixels and a second pass through the first convolution;
    standard training on a tenth of the batches compensates for that.
    """

    lam: float
    eps: float
    box: tuple[float, float] = (0.0, 1.0)
    share: float = 0.9
    """The probability that a batch is attacked."""
    stats: Stats = Stats.BATCH
    """What BN_a normalises by; FROZEN is the estimate of Eq. 3, as in PNC."""

    def __call__(self, net: DualNet, x: Tensor, y: Tensor, generator: Generator) -> float:
        """See `Objective`."""
        if self.lam == 0 or torch.rand((), generator=generator).item() >= self.share:
            return Standard()(net, x, y, generator)
        pixels = x.detach().requires_grad_()
        clean = F.cross_entropy(net(pixels, Branch.CLEAN, Stats.BATCH), y)
        if self.lam < 1:
            ((1 - self.lam) * clean).backward()  # type: ignore[no-untyped-call]
            uphill = cast(Tensor, pixels.grad)
        else:  # a gradient with weight 0 need not be computed
            (uphill,) = torch.autograd.grad(clean, pixels)
        step = self.eps * uphill.sign()
        noised = F.cross_entropy(net((x + step).clamp(*self.box), Branch.NOISED, self.stats), y)
        (self.lam * noised).backward()  # type: ignore[no-untyped-call]
        return (1 - self.lam) * clean.item() + self.lam * noised.item()


Calibration: TypeAlias = Calibrated | OneStep
"""What ST users minimise once there are AT users to learn from."""


@dataclass(frozen=True)
class Trades:
    """TRADES (Zhang et al. 2019): ℓ_CE(f(x; BN_c), y) + β KL(f(x; BN_c) ‖ f(x̃; BN_a)). Moves both branches.

    x̃ maximises the KL divergence, not the cross-entropy. At x itself its gradient is zero, so the attack must start
    at another point.
    """

    attack: Attack
    beta: float = 6.0

    def __post_init__(self) -> None:
        if isinstance(self.attack, PGD) and not self.attack.random_start:
            raise ConfigError(
                "got method.at_loss = 'trades' with an attack that starts at the image itself, where the KL divergence "
                "has no gradient; expected a random start. Set attack.name to pgd or fgsm-rs."
            )

    def __call__(self, net: DualNet, x: Tensor, y: Tensor, generator: Generator) -> float:
        """See `Objective`."""
        with evaluating(net):
            with torch.no_grad():
                target = net(x, Branch.CLEAN, Stats.FROZEN).log_softmax(1)
            logits = as_now(net, Branch.NOISED)
            noised = self.attack(lambda z: divergence(target, logits(z).log_softmax(1)), x, generator)
        clean_logits, noised_logits = net.paired(x, noised, Stats.BATCH, Stats.BATCH)
        apart = divergence(clean_logits.log_softmax(1), noised_logits.log_softmax(1)).mean()
        loss = F.cross_entropy(clean_logits, y) + self.beta * apart
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.item()


@dataclass(frozen=True)
class Mart:
    """MART (Wang et al. 2020): images that are misclassified without an attack get more weight. Moves both branches.

        −log p̃_y − log(1 − max_{k≠y} p̃_k) + β KL(p ‖ p̃) (1 − p_y),     p = f(x; BN_c), p̃ = f(x̃; BN_a)

    x̃ maximises the cross-entropy, as in standard adversarial training.
    """

    attack: Attack
    beta: float = 6.0

    def __call__(self, net: DualNet, x: Tensor, y: Tensor, generator: Generator) -> float:
        """See `Objective`."""
        noised = attacked(self.attack, net, x, y, generator)
        clean, bad = (logits.log_softmax(1) for logits in net.paired(x, noised, Stats.BATCH, Stats.BATCH))
        # log(1 − p̃_k) as the sum over all other classes, which stays finite where 1 − p̃_k rounds to 0.
        label = F.one_hot(y, clean.shape[1]).bool()
        wrong = bad.masked_fill(label, -torch.inf).argmax(1)
        others = bad.masked_fill(F.one_hot(wrong, clean.shape[1]).bool(), -torch.inf).logsumexp(1)
        margin = -bad[label] - others
        weight = 1 - clean[label].exp()
        loss = (margin + self.beta * divergence(clean, bad) * weight).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.item()


@dataclass(frozen=True)
class Fractional:
    """Adversarial training on a share of the batches, standard training on the others.

    Each batch is drawn independently, so the share also holds for clients with one batch per round.
    """

    adversarial: Objective
    share: float

    def __call__(self, net: DualNet, x: Tensor, y: Tensor, generator: Generator) -> float:
        """See `Objective`."""
        chosen = torch.rand((), generator=generator).item() < self.share
        return (self.adversarial if chosen else Standard())(net, x, y, generator)


def attacked(attack: Attack, net: DualNet, x: Tensor, y: Tensor, generator: Generator) -> Tensor:
    """x̃ that makes ℓ_CE(f(x̃; BN_a), y) large, found through frozen statistics and without dropout."""
    with evaluating(net):
        return attack(noised_loss(net, y), x, generator)


def noised_loss(net: DualNet, y: Tensor) -> Callable[[Tensor], Tensor]:
    """ℓ_CE(f(·; BN_a), y) for each image, with frozen statistics and the weights as they are now."""
    logits = as_now(net, Branch.NOISED)
    return lambda z: F.cross_entropy(logits(z), y, reduction="none")


def divergence(log_p: Tensor, log_q: Tensor) -> Tensor:
    """KL(p ‖ q) = Σ p (log p − log q) for each row."""
    return (log_p.exp() * (log_p - log_q)).sum(1)


def clamp(parameters: Iterable[nn.Parameter], largest: float) -> None:
    """CLAMP of Algorithm 3: scale the whole gradient g to largest · g / ‖g‖ if its norm is above `largest`."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    norm = torch.nn.utils.get_total_norm(gradients)
    if norm > largest:
        for gradient in gradients:
            gradient.mul_(largest / norm)


@contextmanager
def evaluating(net: nn.Module) -> Iterator[None]:
    """Within this block the network behaves as at test time: no dropout, and weights take no gradient.

    Layers written as an `autograd.Function` cannot see that only the gradient at the input is needed: without this
    block they would also compute the gradient of their weights.
    """
    training = [module for module in net.modules() if module.training]
    trained = [parameter for parameter in net.parameters() if parameter.requires_grad]
    for module in training:
        module.training = False
    for parameter in trained:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for module in training:
            module.training = True
        for parameter in trained:
            parameter.requires_grad_(True)
