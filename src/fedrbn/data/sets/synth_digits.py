"""SynthDigits drawn anew after the recipe its authors published (Ganin and Lempitsky, 2015).

The original images are not to be had; the recipe is: numbers of one to three digits in many fonts, cropped around one
of them, with random position, orientation, colours of stroke and background, blur, and distracting shapes. The fonts
here are those of matplotlib, so results are close to, but not, the published ones: tables say `(regenerated)`.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from fedrbn.data.imaging import blur, mix, place, to_bytes, uniform
from fedrbn.data.samples import Samples
from fedrbn.data.sets.cache import Expected, cached
from fedrbn.data.sets.lettering import DIGIT_HEIGHT, FONTS, Style, digits_of, numbers

SIZE = 28
LABEL = "synthdigits (regenerated)"
VERSION = 1
"""Counted up whenever the pictures change, so that cached ones are not mistaken for new ones."""

STYLE = Style(
    fonts=FONTS,
    height=(1.05, 1.6),
    shift=0.12,
    angle=math.radians(20),
    slant=0.2,
    gap=(0.08, 0.25),
    lengths=(0.4, 0.3, 0.3),
)
_CONTRAST = 0.45
_BATCH = 1000


def synth_digits(train: int = 10_000, test: int = 5_000, seed: int = 0) -> tuple[Samples, Samples]:
    """Train and test part, 28 x 28 RGB; the same numbers give the same pictures. Kept in the cache."""
    return cached(
        f"synth-digits-{train}-{test}-{seed}-v{VERSION}",
        Expected(train=train, test=test, shape=(3, SIZE, SIZE), classes=10),
        lambda: (
            _draw(train, np.random.default_rng([seed, 0])),
            _draw(test, np.random.default_rng([seed, 1])),
        ),
    )


def _draw(count: int, rng: np.random.Generator) -> Samples:
    """All classes equally often, in random order; in batches, which bounds the memory."""
    labels = torch.from_numpy(rng.permutation(count) % 10)
    batches = [to_bytes(synthetic_pictures(labels[start : start + _BATCH], rng)) for start in range(0, count, _BATCH)]
    return Samples(torch.cat(batches), labels)


def synthetic_pictures(labels: Tensor, rng: np.random.Generator) -> Tensor:
    """One picture in [0, 1] per label: [n, 3, 28, 28]."""
    count = len(labels)
    background = uniform(rng, 0, 1, count, 3)
    picture = background[:, :, None, None].expand(-1, -1, SIZE, SIZE)
    for _ in range(2):
        picture = mix(picture, _distractor(count, rng), uniform(rng, 0, 1, count, 3))
    digit, neighbours = numbers(labels, STYLE, SIZE, rng)
    stroke = contrasting(background, rng)
    picture = mix(picture, torch.maximum(digit, neighbours), stroke)
    return blur(picture, uniform(rng, 0, 0.9, count))


def contrasting(colour: Tensor, rng: np.random.Generator) -> Tensor:
    """For each colour [n, 3] a random one that differs from it in brightness, so that shapes stay readable."""
    candidates = uniform(rng, 0, 1, 16, len(colour), 3)
    difference = (brightness(candidates) - brightness(colour)).abs()
    # NumPy's argmax takes the first of equals: the first candidate that differs enough, or else the best there is.
    choice = np.argmax(difference.clamp(max=_CONTRAST).numpy(), axis=0)
    return candidates[choice, np.arange(len(colour))]


def brightness(colour: Tensor) -> Tensor:
    """Luma of RGB in the last dimension."""
    return colour @ torch.tensor([0.299, 0.587, 0.114])


def _distractor(count: int, rng: np.random.Generator) -> Tensor:
    """Coverage of a digit so far out that the frame cuts it; absent in half of the pictures."""
    font, digit = rng.integers(len(FONTS), size=count), rng.integers(10, size=count)
    direction, distance = uniform(rng, 0, 2 * math.pi, count), uniform(rng, 1.0, 1.3, count)
    centre = torch.stack([direction.cos(), direction.sin()], dim=1) * distance[:, None]
    scale, angle = uniform(rng, 0.7, 1.4, count) / DIGIT_HEIGHT, uniform(rng, -math.pi, math.pi, count)
    shapes = digits_of(FONTS).shapes[font, digit]
    drawn = place(shapes, centre, scale=scale, angle=angle, slant=torch.zeros(count), size=SIZE)
    return drawn * torch.from_numpy(rng.random(count) < 0.5)[:, None, None]
