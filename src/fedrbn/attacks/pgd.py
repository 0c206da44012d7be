"""A_ε(x): projected gradient ascent on a loss inside the L∞ ball of radius ε, with or without momentum.

    g ← decay · g + ∇loss(x_adv) / mean|∇loss(x_adv)|          (the division matters only with momentum)
    x_adv ← clip(x_adv + step_size · sign(g), [x − ε, x + ε], then the box)

Three attacks from the literature are settings of this class:

    pgd()       Madry et al. 2018, the paper's attack: 7 steps of 2/255 from a random start, ε = 8/255
    mia()       Dong et al. 2018, momentum iterative: decay 1, from x itself
    fgsm_rs()   Wong et al. 2020: one step of 1.25 ε from a random start
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedrbn.attacks.protocols import Loss, check_pixels
from fedrbn.config.text import length_hint
from fedrbn.errors import AttackError


@dataclass(frozen=True)
class PGD:
    """L∞ projected gradient ascent; see the formula of the module. Lengths are in pixels, whose range is [0, 1].

    Called as `attack(loss, x, generator)`. It differentiates the loss only at the input: gradients of
    parameters, modes of modules and buffers do not change, unless `loss` itself changes them.
    """

    eps: float = 8 / 255
    steps: int = 7
    step_size: float = 2 / 255
    random_start: bool = True
    """Start uniformly in the ball rather than at x."""
    restarts: int = 1
    """Independent runs; each sample keeps the point with the highest loss."""
    decay: float = 0.0
    """The fraction of the accumulated gradient that is kept after a step; 0 is plain PGD."""
    box: tuple[float, float] = (0.0, 1.0)
    """The range of pixels. It takes priority over the ball, which matters only if x is outside the box."""

    def __post_init__(self) -> None:
        low, high = self.box
        checks = (
            (0 <= self.eps <= 1, f"eps {self.eps}", f"a length in [0, 1] ({length_hint(self.eps)})"),
            (self.steps >= 1, f"steps {self.steps}", "at least 1"),
            (
                0 < self.step_size <= 2 or self.step_size == self.eps == 0,
                f"step_size {self.step_size}",
                "a length above 0 (an attack that never moves would look like robustness), such as 2 / 255",
            ),
            (self.restarts >= 1, f"restarts {self.restarts}", "at least 1"),
            (
                self.restarts <= 1 or self.random_start,
                f"{self.restarts} restarts without a random start, which all end at the same point",
                "restarts=1, or random_start=True",
            ),
            (0 <= self.decay < math.inf, f"decay {self.decay}", "0 (no momentum) or above, usually 1"),
            (0 <= low < high <= 1, f"box {self.box}", "two different bounds in [0, 1], such as (0.0, 1.0)"),
        )
        for valid, got, expected in checks:
            if not valid:
                raise AttackError(f"got {got}; expected {expected}. Change this setting of the attack.")

    def __call__(self, loss: Loss, x: Tensor, generator: torch.Generator) -> Tensor:
        """Adversarial pixels for x; costs `steps` forward and backward passes per run."""
        check_pixels(x)
        if not len(x):
            return x.detach().clone()
        # Evaluation usually runs under no_grad or inference_mode; the attack always needs gradients.
        with torch.inference_mode(False), torch.enable_grad():
            x = x.detach().clone()
            best = self._run(loss, x, generator)
            if self.restarts == 1:
                return best
            highest = _per_sample(loss, best).detach()
            for _ in range(self.restarts - 1):
                candidate = self._run(loss, x, generator)
                with torch.no_grad():
                    reached = _per_sample(loss, candidate)
                better = reached > highest
                best = torch.where(_like(better, x), candidate, best)
                highest = torch.where(better, reached, highest)
        return best

    def _run(self, loss: Loss, x: Tensor, generator: torch.Generator) -> Tensor:
        """One ascent from one start."""
        # Clipping to the ball and then to the box equals clipping to the bounds of the ball, clipped to the box.
        lower, upper = (x - self.eps).clamp(*self.box), (x + self.eps).clamp(*self.box)
        start = x + self.eps * _uniform(x, generator) if self.random_start else x
        adversarial = start.clamp(lower, upper)
        momentum = torch.zeros_like(x)
        for _ in range(self.steps):
            adversarial.requires_grad_()
            (gradient,) = torch.autograd.grad(_per_sample(loss, adversarial).sum(), adversarial)
            if self.decay:
                momentum = self.decay * momentum + _normalised(gradient)
                gradient = momentum
            adversarial = (adversarial.detach() + self.step_size * gradient.sign()).clamp(lower, upper)
        return adversarial


def pgd(
    eps: float = 8 / 255, steps: int = 7, step_size: float = 2 / 255, random_start: bool = True, restarts: int = 1
) -> PGD:
    """PGD of Madry et al. 2018 with the paper's setting as default."""
    return PGD(eps=eps, steps=steps, step_size=step_size, random_start=random_start, restarts=restarts)


def mia(eps: float = 8 / 255, steps: int = 7, step_size: float = 2 / 255, decay: float = 1.0) -> PGD:
    """The momentum iterative attack of Dong et al. 2018; it starts at x, so it draws no random numbers."""
    return PGD(eps=eps, steps=steps, step_size=step_size, random_start=False, decay=decay)


def fgsm_rs(eps: float = 8 / 255) -> PGD:
    """FGSM from a random start with the step of 1.25 ε that Wong et al. 2020 found to work."""
    return PGD(eps=eps, steps=1, step_size=1.25 * eps, random_start=True)


def _per_sample(loss: Loss, x: Tensor) -> Tensor:
    values = loss(x)
    if values.shape != x.shape[:1]:
        raise AttackError(
            f"got a loss of shape {tuple(values.shape)} for {len(x)} samples; expected ({len(x)},), one per sample. "
            'Use reduction="none".'
        )
    return values


def _uniform(x: Tensor, generator: torch.Generator) -> Tensor:
    """Noise in [-1, 1) of x's shape, drawn on the generator's device, so a CPU generator works for every device."""
    noise = torch.rand(x.shape, generator=generator, device=generator.device, dtype=x.dtype)
    return (2 * noise - 1).to(x.device)


def _normalised(gradient: Tensor) -> Tensor:
    """Each sample's gradient divided by its mean absolute value; a zero gradient stays zero."""
    size = gradient.abs().reshape(len(gradient), -1).mean(1)
    return gradient / _like(size, gradient).clamp_min(torch.finfo(gradient.dtype).tiny)


def _like(values: Tensor, x: Tensor) -> Tensor:
    """One value per sample, shaped to broadcast over x."""
    return values.reshape(-1, *[1] * (x.ndim - 1))
