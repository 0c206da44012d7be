"""Warning signs that a robust accuracy flatters: a check-list, each line of which can fail.

The signs are those that the literature on broken defences lists (Athalye et al. 2018, Carlini et al. 2019): an attack
that is not stronger with more steps or a larger ε, that loses to black-box search or to random noise, that does not
reach chance without a bound, or that has no gradient to follow, says little about robustness. Every sign is measured
on a few samples of every client, per sample and without leaving out any, and judged over all of them together.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from fedrbn.attacks import PGD, Logits, LogitsAttack, Untargeted
from fedrbn.attacks.autoattack import square
from fedrbn.data.samples import Samples
from fedrbn.evaluation import Deployment, attack_through, deployment_name, logits_of, other_views
from fedrbn.nets.dual_bn import DualNet
from fedrbn.types import Answers, Tensors

SAMPLES = 16
"""Samples of each client that the check-list looks at."""

QUERIES = 300
"""Queries of the black-box search. Few, but it only has to show that it does not beat the gradient."""


@dataclass(frozen=True)
class Diagnosis:
    """The measurements of the check-list, as answers named `check …`: a boolean per sample.

    `attack` is what the reported robust accuracy was measured with; `through` is where that attack looked, which for
    an honest evaluation is the deployment itself.
    """

    deployment: Deployment
    attack: PGD
    through: Deployment | None = None
    samples: int = SAMPLES

    def __call__(self, net: DualNet, samples: Samples, generator: Generator) -> Tensors:
        """See `fedrbn.evaluation.Question`."""
        device = next(net.parameters()).device
        x, y = (part.to(device) for part in samples.pixels(slice(0, self.samples)))
        deployed, views = logits_of(net, self.deployment), [logits_of(net, self.through or self.deployment)]
        eps, steps = self.attack.eps, self.attack.steps
        unbounded = PGD(eps=1.0, steps=max(20, steps), step_size=0.1, random_start=False)
        tried: dict[str, tuple[LogitsAttack, list[Logits]]] = {
            "attacked": (Untargeted(self.attack), views),
            "more steps": (Untargeted(replace(self.attack, steps=5 * steps)), views),
            "larger ε": (Untargeted(replace(self.attack, eps=min(1.0, 2 * eps), steps=2 * steps)), views),
            "ε = 1": (Untargeted(unbounded), views),
        }
        if importlib.util.find_spec("pyautoattack") is not None:
            tried["black box"] = (square(eps=eps, queries=QUERIES), [deployed])
        elsewhere = other_views(net, self.deployment) + (((self.deployment,),) if self.through else ())
        for others in elsewhere:
            name = f"through {' and '.join(deployment_name(view) for view in others)}"
            tried[name] = (Untargeted(self.attack), [logits_of(net, view) for view in others])
        answers = {"clean": right(deployed, x, y), "noise": right(deployed, _noised(x, eps, generator), y)}
        for name, (attack, surfaces) in tried.items():
            adversarial = attack_through(attack, surfaces, x, y, generator) if len(x) else x
            answers[name] = right(deployed, adversarial, y)
            if name == "attacked":
                answers["within bounds"] = _within(x, adversarial, self.attack)
        answers["same logits"] = _repeatable(deployed, x)
        answers["gradient"] = _has_gradient(views[0], x, y)
        return {f"check {name}": answer.cpu() for name, answer in answers.items()}


@dataclass(frozen=True)
class Check:
    """One line of the check-list."""

    name: str
    passed: bool | None
    """None if it was not tried."""
    detail: str


def judge(answers: Sequence[Answers], classes: int) -> list[Check]:
    """The check-list from all clients' measurements.

    Comparisons of two accuracies allow for chance: three standard errors of the difference, as estimated from the
    samples on which the two disagree.
    """
    found = _pooled(answers)
    mean = {name: value.double().mean().item() for name, value in found.items()}
    chance = 1 / classes
    allowed = chance + 3 * math.sqrt(chance * (1 - chance) / len(found["clean"]))

    def not_above(low: str, high: str, text: str) -> Check:
        excess = mean[low] - mean[high]
        passed = excess <= _three_standard_errors(found[low], found[high])
        return Check(text, passed, f"{low} {mean[low]:.1%}, {high} {mean[high]:.1%}")

    checks = [
        not_above("attacked", "clean", "robust accuracy is not above clean accuracy"),
        not_above("attacked", "noise", "the attack hurts at least as much as random noise of size ε"),
        not_above("more steps", "attacked", "more steps do not raise robust accuracy"),
        not_above("larger ε", "attacked", "a larger ε does not raise robust accuracy"),
        Check("without a bound (ε = 1) the attack reaches chance", mean["ε = 1"] <= allowed, f"{mean['ε = 1']:.1%}"),
        Check(
            "adversarial images stay in [0, 1] and in the ball",
            mean["within bounds"] == 1,
            f"{mean['within bounds']:.1%} of them",
        ),
        Check("the same input gives the same logits", mean["same logits"] == 1, f"{mean['same logits']:.1%} of inputs"),
        Check("gradients do not vanish", mean["gradient"] >= 0.9, f"present at {mean['gradient']:.1%} of inputs"),
    ]
    black_box = "black-box search does not beat the gradient attack"
    if "black box" in found:
        checks.append(not_above("attacked", "black box", black_box))
    else:
        checks.append(Check(black_box, None, "not tried: pip install 'fedrbn[attacks]'"))
    for name in sorted(key for key in found if key.startswith("through ")):
        checks.append(not_above("attacked", name, f"an attack {name} is not stronger"))
    return checks


def as_records(checks: Sequence[Check]) -> list[dict[str, Any]]:
    """The check-list for a record."""
    return [{"name": check.name, "passed": check.passed, "detail": check.detail} for check in checks]


def right(logits: Logits, x: Tensor, y: Tensor) -> Tensor:
    """Which samples are predicted right."""
    with torch.no_grad():
        return logits(x).argmax(1) == y if len(x) else torch.zeros(0, dtype=torch.bool)


def _pooled(answers: Sequence[Answers]) -> Mapping[str, Tensor]:
    names = [name.removeprefix("check ") for name in answers[0].correct if name.startswith("check ")]
    return {name: torch.cat([answer.correct[f"check {name}"] for answer in answers]) for name in names}


def _three_standard_errors(first: Tensor, second: Tensor) -> float:
    disagreements = (first != second).sum().item()
    return 3 * math.sqrt(disagreements) / max(1, len(first))


def _noised(x: Tensor, eps: float, generator: Generator) -> Tensor:
    """Every pixel moved by ε up or down at random: the noise of the largest size that the ball allows."""
    signs = torch.randint(0, 2, x.shape, generator=generator).to(x) * 2 - 1
    return (x + eps * signs).clamp(0, 1)


def _within(x: Tensor, adversarial: Tensor, attack: PGD) -> Tensor:
    low, high = attack.box
    far = (adversarial - x).abs() > attack.eps + 1e-6
    outside = (adversarial < min(low, 0)) | (adversarial > max(high, 1))
    return ~(far | outside).flatten(1).any(1)


def _repeatable(logits: Logits, x: Tensor) -> Tensor:
    with torch.no_grad():
        return (logits(x) == logits(x)).all(1)


def _has_gradient(logits: Logits, x: Tensor, y: Tensor) -> Tensor:
    """Whether the loss has a gradient at each input, other than zero."""
    z = x.detach().clone().requires_grad_()
    with torch.enable_grad():
        loss = F.cross_entropy(logits(z), y, reduction="sum")
        if not loss.requires_grad:
            return torch.zeros(len(x), dtype=torch.bool)
        (gradient,) = torch.autograd.grad(loss, z)
    return gradient.flatten(1).abs().amax(1) > 0
