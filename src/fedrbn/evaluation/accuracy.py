"""Accuracy with and without an adversary, sample by sample, on the network as it is deployed.

A *deployment* is how logits are computed: with one branch of batch norm, or with a rule that picks the branch for each
input. The adversary always attacks the deployment itself. An adaptive one also tries each branch and their mean loss;
then a sample counts as robust only if the deployed network withstands all of them. Samples that are wrong without any
attack count as wrong under attack, and are removed from the batch before it starts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from fedrbn.attacks import Logits, LogitsAttack, Oblivious, Untargeted
from fedrbn.attacks.check import check_returned
from fedrbn.data.samples import Samples
from fedrbn.federated.protocol import Network
from fedrbn.types import Branch

BATCH = 128
"""Images per pass; on one CPU core, batches from 32 to 512 took the same time per image within a tenth."""


@dataclass(frozen=True)
class PerInput:
    """A deployment that picks the branch for each input: BN_a where `choose(clean logits, noised logits)` is true."""

    name: str
    choose: Callable[[Tensor, Tensor], Tensor] = field(repr=False)


def more_confident(clean: Tensor, noised: Tensor) -> Tensor:
    """Whether BN_a gives its best class a higher probability than BN_c gives its own."""
    return noised.softmax(1).amax(1) > clean.softmax(1).amax(1)


CONFIDENT = PerInput("confident", more_confident)

Deployment: TypeAlias = Branch | PerInput


def deployment_name(deployment: Deployment) -> str:
    """The name of a deployment in records: clean, noised, or the rule's name."""
    return deployment.value if isinstance(deployment, Branch) else deployment.name


def logits_of(net: Network, deployment: Deployment) -> Logits:
    """The deployed network as a function of pixels; an attack on it goes through the rule, if there is one."""
    return _combined({branch: net.logits(branch) for branch in Branch}, deployment)


def surface_of(net: Network, deployment: Deployment, example: Tensor) -> Logits:
    """The same function for the adversary to differentiate; batch norm is folded where this is exact, for speed.

    `example` is a batch of typical inputs. Only `logits_of` decides whether a sample is right.
    """
    needed = (deployment,) if isinstance(deployment, Branch) else tuple(Branch)
    return _combined({branch: net.surface(branch, example) for branch in needed}, deployment)


def _combined(branches: Mapping[Branch, Logits], deployment: Deployment) -> Logits:
    if isinstance(deployment, Branch):
        return branches[deployment]
    choose = deployment.choose

    def picked(x: Tensor) -> Tensor:
        clean, noised = branches[Branch.CLEAN](x), branches[Branch.NOISED](x)
        return torch.where(choose(clean, noised)[:, None], noised, clean)

    return picked


@dataclass(frozen=True)
class Accuracy:
    """Which samples are right: clean, under an attack on the deployment, and under its adaptive versions.

    The answers are named `clean@D`, `A@D` and `A@D adaptive` for attack A and deployment D. A `limit`, for expensive
    attacks, uses only that many samples, from the first on; then the first answer is named `clean for A@D`. With a
    `radius`, the answer `check bounds of A@D` says for which samples all adversarial images are in the box [0, 1] and
    in the L∞ ball of that radius.
    """

    deployment: Deployment
    label: str = ""
    attack: LogitsAttack | None = field(default=None, repr=False)
    adaptive: bool = False
    limit: int | None = None
    radius: float | None = field(default=None, repr=False)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the answers."""
        where = deployment_name(self.deployment)
        clean = f"clean@{where}" if self.limit is None else f"clean for {self.label}@{where}"
        if self.attack is None:
            return (clean,)
        attacked = f"{self.label}@{where}"
        found = [clean, attacked]
        if self.adaptive and not isinstance(self.attack, Oblivious):
            found.append(f"{attacked} adaptive")
        if self.radius is not None:
            found.append(f"check bounds of {attacked}")
        return tuple(found)

    def __call__(self, net: Network, samples: Samples, generator: Generator) -> dict[str, Tensor]:
        """See `Question`."""
        x, y = (part.to(net.device) for part in samples.pixels(slice(0, self.limit)))
        right = self._right(net, x, y)
        found, inside = [right.cpu()], torch.ones_like(right)
        if isinstance(self.attack, Oblivious):  # not an adversary: it only changes the images
            changed = self._attacked(net, x, y, (self.deployment,), generator)
            found.append(self._right(net, changed, y).cpu())
            inside = self._inside(x, changed)
        elif self.attack is not None:
            right, inside = self._withstood(net, x, y, right, (self.deployment,), generator)
            found.append(right.cpu())
            if self.adaptive:
                for views in other_views(net, self.deployment):
                    right, also_inside = self._withstood(net, x, y, right, views, generator)
                    inside &= also_inside
                found.append(right.cpu().clone())  # not the same tensor if nothing was tried
        if self.attack is not None and self.radius is not None:
            found.append(inside.cpu())
        return dict(zip(self.names, found, strict=True))

    def _right(self, net: Network, x: Tensor, y: Tensor) -> Tensor:
        logits = logits_of(net, self.deployment)
        with torch.no_grad():
            parts = [logits(part).argmax(1) for part in torch.split(x, BATCH)] if len(x) else [y]
        return torch.cat(parts) == y

    def _withstood(
        self, net: Network, x: Tensor, y: Tensor, standing: Tensor, views: tuple[Deployment, ...], generator: Generator
    ) -> tuple[Tensor, Tensor]:
        """`standing` without the samples that an attack through these views fools; only `standing` ones are attacked.

        Also returns which samples were attacked within bounds, or not at all.
        """
        index = standing.nonzero()[:, 0]
        noised = self._attacked(net, x[index], y[index], views, generator)
        still, inside = standing.clone(), torch.ones_like(standing)
        still[index] = self._right(net, noised, y[index])
        inside[index] = self._inside(x[index], noised)
        return still, inside

    def _inside(self, x: Tensor, adversarial: Tensor) -> Tensor:
        """Which adversarial images are in [0, 1] and in the ball; NaN is outside."""
        if self.radius is None:
            return torch.ones(len(x), dtype=torch.bool, device=x.device)
        near = (adversarial - x).abs() <= self.radius + 1e-6
        return (near & (adversarial >= 0) & (adversarial <= 1)).flatten(1).all(1)

    def _attacked(
        self, net: Network, x: Tensor, y: Tensor, views: tuple[Deployment, ...], generator: Generator
    ) -> Tensor:
        if self.attack is None or not len(x):
            return x
        functions = [surface_of(net, view, x[:2]) for view in views]
        return torch.cat(
            [
                attack_through(self.attack, functions, part, labels, generator)
                for part, labels in zip(torch.split(x, BATCH), torch.split(y, BATCH), strict=True)
            ]
        )


def other_views(net: Network, deployment: Deployment) -> tuple[tuple[Deployment, ...], ...]:
    """What an adaptive adversary attacks besides the deployment: the other branches, and their mean."""
    if Branch.NOISED not in net.branches:
        return ()
    return (*((branch,) for branch in Branch if branch is not deployment), tuple(Branch))


def attack_through(attack: LogitsAttack, views: list[Logits], x: Tensor, y: Tensor, generator: Generator) -> Tensor:
    """Attack one function, or the mean over several: of their loss, or of their scores for attacks that use scores.

    The mean of log-probabilities has the mean cross-entropy as its loss, up to a term that does not depend on y.
    """
    if len(views) == 1:
        found = attack(views[0], x, y, generator)
    elif isinstance(attack, Untargeted):

        def mean_loss(z: Tensor) -> Tensor:
            return torch.stack([F.cross_entropy(view(z), y, reduction="none") for view in views]).mean(0)

        found = attack.attack(mean_loss, x, generator)
    else:
        found = attack(lambda z: torch.stack([view(z).log_softmax(1) for view in views]).mean(0), x, y, generator)
    check_returned(found, x)
    return found.detach()
