"""The check-list's questions about the network itself: can an attack work with its logits and gradients?

Four properties of honest networks, each measured per sample. Networks without one of them have been mistaken for robust
(Athalye et al. 2018, Carlini et al. 2019): attacks on them fail, but images that fool them still exist.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from fedrbn.attacks import Logits, Loss
from fedrbn.attacks.protocols import margin
from fedrbn.data.samples import Samples
from fedrbn.evaluation.accuracy import Deployment, deployment_name, logits_of, surface_of
from fedrbn.federated.protocol import Network
from fedrbn.types import Branch, Tensors

INVISIBLE = 1e-5
"""A change of every pixel by this is 3,000 times smaller than ε = 8/255, and 400 times smaller than a grey level."""

ABRUPT = 0.05
"""Logits that move by this fraction of their range under an invisible change are not a smooth function of the image. An
honest network that an ε of 8/255 just fools moves its logits by about 1/3,000 of their range."""

HALVINGS = 10
"""How often the way between two images is halved to find where the class changes. What remains is 1/1024 of the way, at
most a quarter of a grey level per pixel. An honest network moves its logits there by about 1/1000 of their range."""

STEP = 1e-3
"""Half the distance of the finite difference of the loss: far above float32 rounding, far below ε."""

ROUNDING = 1e-5
"""Logits that differ by this fraction of their range differ by more than float32 rounding."""

PROPERTIES = ("repeatable", "smooth", "gradient", "directional")


@dataclass(frozen=True)
class Diagnosis:
    """Properties of a deployed network on a client's first samples, as answers `check P@D` for deployment D.

    repeatable    the same image gives the same logits: exactly the second time, and nearly after other images, in
                  another batch, with gradients, in inference mode, and in the copy that attacks differentiate
    smooth        an invisible change hardly moves the logits: of the image, and where the class changes on the way to
                  an image of another class
    gradient      the cross-entropy has a gradient at the image
    directional   along a random direction the margin changes as its gradient predicts
    """

    deployment: Deployment
    samples: int

    @property
    def limit(self) -> int:
        """See `Question`."""
        return self.samples

    @property
    def names(self) -> tuple[str, ...]:
        """See `Question`."""
        where = deployment_name(self.deployment)
        return tuple(f"check {name}@{where}" for name in PROPERTIES)

    def __call__(self, net: Network, samples: Samples, generator: Generator) -> Tensors:
        """See `fedrbn.evaluation.accuracy.Question`."""
        x, y = (part.to(net.device) for part in samples.pixels(slice(0, self.samples)))
        logits = logits_of(net, self.deployment)
        signs = (torch.randint(0, 2, x.shape, generator=generator) * 2 - 1).to(x)
        found = {
            "repeatable": _repeatable(logits, x)
            & _memoryless(net, self.deployment, x, signs)
            & _same(_views(net, self.deployment, x)),
            "smooth": _smooth(logits, x, signs) & _gradual_in_every_branch(net, self.deployment, x),
            "gradient": _has_gradient(logits, x, y),
            "directional": _directional(logits, x, y, signs),
        }
        return {name: found[key].cpu() for key, name in zip(PROPERTIES, self.names, strict=True)}


@torch.no_grad()
def _repeatable(logits: Logits, x: Tensor) -> Tensor:
    return (logits(x) == logits(x)).all(1)


@torch.no_grad()
def _memoryless(net: Network, deployment: Deployment, x: Tensor, signs: Tensor) -> Tensor:
    """Whether a network that was asked about nearby images before answers as one that was not.

    Each surface is a copy of the network. The images are negatives, which nobody has asked about yet.
    """
    image = _inner(1 - x, STEP)
    asked, fresh = (surface_of(net, deployment, x[:2]) for _ in range(2))
    asked(image)
    near = image + STEP * signs
    return _same([asked(near), fresh(near)], ROUNDING)


def _same(answers: Sequence[Tensor], tolerance: float = ABRUPT) -> Tensor:
    """Whether all logits are those of the first answer, up to this fraction of their range."""
    first = answers[0]
    limit = tolerance * (first.amax(1) - first.amin(1))
    return torch.stack([(other - first).abs().amax(1) <= limit for other in answers]).all(0)


def _views(net: Network, deployment: Deployment, x: Tensor) -> list[Tensor]:
    """The logits of the images as `Accuracy` asks for them, and in all other ways that attacks ask."""
    logits, surface = logits_of(net, deployment), surface_of(net, deployment, x[:2])
    with torch.no_grad():
        found = [logits(x), surface(x), torch.cat([logits(part) for part in _divided(x)])]
    with torch.inference_mode():
        found.append(logits(x))
    with torch.inference_mode(False), torch.enable_grad():
        z = x.detach().clone().requires_grad_()
        found += [logits(z).detach(), surface(z).detach()]
    return found


def _divided(x: Tensor) -> Sequence[Tensor]:
    """The images in other batches: the first one alone, the rest as two."""
    return [x[:1], *torch.tensor_split(x[1:], 2)] if len(x) > 2 else x.split(1)  # type: ignore[no-untyped-call]


@torch.no_grad()
def _smooth(logits: Logits, x: Tensor, signs: Tensor) -> Tensor:
    before, after = logits(x), logits(_inner(x, INVISIBLE) + INVISIBLE * signs)
    return (after - before).abs().amax(1) <= ABRUPT * (before.amax(1) - before.amin(1))


def _gradual_in_every_branch(net: Network, deployment: Deployment, x: Tensor) -> Tensor:
    """A rule that picks the branch for each input may jump from one to the other; each branch must be gradual."""
    branches = (deployment,) if isinstance(deployment, Branch) else tuple(Branch)
    return torch.stack([_gradual(logits_of(net, branch), x) for branch in branches]).all(0)


@torch.no_grad()
def _gradual(logits: Logits, x: Tensor) -> Tensor:
    """Whether the class changes gradually on the way to the next image of another class.

    A network can hide its decision in steep steps and add a small smooth function. Its gradient leads attacks nowhere,
    and at the images themselves the network looks honest. It cannot hide the steps themselves.
    """
    before = logits(x)
    classes = before.argmax(1)
    near, far = x.clone(), x[_next_of_another(classes)]
    first, last = before, logits(far)
    for _ in range(HALVINGS):
        middle = (near + far) / 2
        found = logits(middle)
        same = found.argmax(1) == classes
        wide = same[:, None, None, None]
        near, far = torch.where(wide, middle, near), torch.where(wide, far, middle)
        first, last = torch.where(same[:, None], found, first), torch.where(same[:, None], last, found)
    return _same([before, before + last - first])


def _next_of_another(classes: Tensor) -> Tensor:
    """For each image, the next one with another class, from the first on after the last; itself if there is none."""
    count = len(classes)
    index = torch.arange(count, device=classes.device)
    later = (index[:, None] + index[None, :]) % max(1, count)
    return later.gather(1, (classes[later] != classes[:, None]).int().argmax(1, keepdim=True))[:, 0]


def _has_gradient(logits: Logits, x: Tensor, y: Tensor) -> Tensor:
    return _gradient(lambda z: F.cross_entropy(logits(z), y, reduction="none"), x).flatten(1).abs().amax(1) > 0


def _directional(logits: Logits, x: Tensor, y: Tensor, signs: Tensor) -> Tensor:
    """Whether the gradient predicts if the margin grows or shrinks along the direction.

    With a gradient at an angle θ to the true one this is true with probability 1 − θ/π: 1 for the true gradient, 1/2
    for an unrelated one, 0 for the opposite one.
    """
    middle = _inner(x, STEP)
    predicted = (_gradient(lambda z: margin(logits(z), y), middle) * signs).flatten(1).sum(1)
    with torch.no_grad():
        change = margin(logits(middle + STEP * signs), y) - margin(logits(middle - STEP * signs), y)
    return predicted * change > 0


def _inner(x: Tensor, distance: float) -> Tensor:
    """The image moved away from the borders of [0, 1], so that a step of this length stays inside."""
    return x.clamp(distance, 1 - distance)


def _gradient(loss: Loss, x: Tensor) -> Tensor:
    """∇loss at x; zero if the network detaches its input."""
    with torch.inference_mode(False), torch.enable_grad():
        z = x.detach().clone().requires_grad_()
        value = loss(z).sum() + 0 * z.sum()
        (gradient,) = torch.autograd.grad(value, z)
    return gradient
