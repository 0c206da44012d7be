"""LSA: greedy local search that uses only scores (Narodytska & Kasiviswanathan 2016, LocSearchAdv).

It changes a few pixels by a large amount, so no ε bounds it. A round tries each candidate pixel separately, selects the
`pixels` ones that lower the true class's probability most, and changes those permanently; the next candidates are the
pixels around them. On values v centred in [-½, ½], all channels of a pixel together:

    a trial sets      v ← sign(v) / 2                (the article's p · sign(v), clipped to the range of pixels)
    a change sets     v ← r · v, wrapped by one range length where that leaves [-½, ½]

It needs neither gradients nor access to the network's layers, so masked gradients do not stop it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from fedrbn.attacks.protocols import Logits, check_images
from fedrbn.errors import AttackError


@dataclass(frozen=True)
class LocalSearch:
    """Greedy local search, called as `attack(logits, x, y, generator)`; see the module docstring.

    Samples that withstand it, or are misclassified from the start, are returned unchanged.
    """

    rounds: int = 7
    """R: the paper's table uses 7; the original article up to 150."""
    r: float = 1.5
    """How far a changed pixel moves, in [1, 2]."""
    trial: Literal["saturate", "change"] = "saturate"
    """What a trial does: saturate, as published, or the same change that would be kept, a much stronger search."""
    radius: int = 5
    """d: half the side of the square of candidates around a changed pixel."""
    pixels: int = 5
    """t: pixels changed per round."""
    top: int = 1
    """k: the attack succeeds when the true class is not among the k most likely."""
    first: float = 0.1
    """Share of all pixels that the first round tries."""
    candidates: int = 128
    """Maximum pixels tried per image and round; if there are more, a random subset is tried."""
    accumulate: bool = True
    """Whether changes stay from round to round, as published; False starts every round from the clean image."""
    chunk: int = 2048
    """Images per forward pass: limits memory."""

    def __post_init__(self) -> None:
        checks = (
            (self.rounds >= 1, f"rounds {self.rounds}", "at least 1"),
            (1 <= self.r <= 2, f"r {self.r}", "a factor in [1, 2]"),
            (self.trial in ("saturate", "change"), f"trial {self.trial!r}", "saturate or change"),
            (self.radius >= 0, f"radius {self.radius}", "at least 0"),
            (self.pixels >= 1, f"pixels {self.pixels}", "at least 1"),
            (self.top >= 1, f"top {self.top}", "at least 1"),
            (0 < self.first <= 1, f"first {self.first}", "a share in (0, 1]"),
            (self.candidates >= 1, f"candidates {self.candidates}", "at least 1"),
            (self.chunk >= 1, f"chunk {self.chunk}", "at least 1"),
        )
        for valid, got, expected in checks:
            if not valid:
                raise AttackError(f"got {got}; expected {expected}. Change this setting of the local search.")

    @torch.no_grad()
    def __call__(self, logits: Logits, x: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
        """Adversarial pixels; at most rounds · (candidates + 1) forward passes per image."""
        check_images(x)
        found = x.detach().clone()
        if not len(x):
            return found
        active = self._holds(logits, found, y).nonzero().flatten()
        current = found[active]
        near = self._seeds(current, generator)
        for _ in range(self.rounds):
            if not len(active):
                break
            start = current if self.accumulate else x[active]
            chosen = self._best(logits, start, y[active], near, generator)
            current = torch.where(chosen[:, None], _cyclic(start, self.r), start)
            holds = self._holds(logits, current, y[active])
            found[active[~holds]] = current[~holds]
            active, current, near = active[holds], current[holds], _dilated(chosen[holds], self.radius)
        return found

    def _seeds(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """The first candidates: a random share of each image's pixels, as a mask [n, height, width]."""
        count = max(1, round(self.first * x[0, 0].numel())) if len(x) else 0
        everything = torch.ones(len(x), *x.shape[2:], dtype=torch.bool, device=x.device)
        return _random_subset(everything, count, generator)

    def _best(self, logits: Logits, x: Tensor, y: Tensor, near: Tensor, generator: torch.Generator) -> Tensor:
        """The mask of the pixels per image whose trial lowers the true class's probability most."""
        tried = _cyclic(x, self.r) if self.trial == "change" else 0.5 + 0.5 * (x - 0.5).sign()
        image, row, column = _random_subset(near, self.candidates, generator).nonzero(as_tuple=True)
        score = torch.full(near.shape, torch.inf, dtype=x.dtype, device=x.device)
        for part in torch.split(torch.arange(len(image), device=x.device), self.chunk):
            i, place = image[part], (row[part], column[part])
            trials = x[i]
            trials[torch.arange(len(i), device=x.device), :, *place] = tried[i, :, *place]
            probability = logits(trials).softmax(1).gather(1, y[i, None])[:, 0]
            score[i, *place] = probability.to(x.dtype)
        flat = score.flatten(1)
        lowest, index = flat.topk(min(self.pixels, flat.shape[1]), largest=False)
        return torch.zeros_like(flat, dtype=torch.bool).scatter_(1, index, lowest < torch.inf).view_as(near)

    def _holds(self, logits: Logits, x: Tensor, y: Tensor) -> Tensor:
        """Which images still have their true class among the most likely."""
        likeliest = [logits(part).topk(self.top, dim=1).indices for part in torch.split(x, self.chunk)]
        return (torch.cat(likeliest) == y[:, None]).any(1)


def _cyclic(x: Tensor, r: float) -> Tensor:
    """r · v on centred values, wrapped by one range length (once is enough, because r ≤ 2 and |v| ≤ ½), in pixels."""
    scaled = r * (x - 0.5)
    return (scaled - (scaled > 0.5).to(x.dtype) + (scaled < -0.5).to(x.dtype) + 0.5).clamp(0, 1)


def _random_subset(mask: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """At most `count` of each image's true positions, chosen at random."""
    draw = torch.rand(mask.shape, generator=generator, device=generator.device).to(mask.device)
    flat = torch.where(mask, draw, -1.0).flatten(1)
    value, index = flat.topk(min(count, flat.shape[1]))
    return torch.zeros_like(flat, dtype=torch.bool).scatter_(1, index, value >= 0).view_as(mask)


def _dilated(mask: Tensor, radius: int) -> Tensor:
    """Every position within `radius` rows and columns of a true one."""
    side = 2 * radius + 1
    return F.max_pool2d(mask[:, None].float(), side, stride=1, padding=radius)[:, 0] > 0
