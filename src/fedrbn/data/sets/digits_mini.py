"""digits-mini: five visual domains of digits that need no download, drawn in seconds and always the same.

| domain    | digits              | look                                                                     |
|-----------|---------------------|--------------------------------------------------------------------------|
| plain     | handwritten         | light on dark                                                            |
| pen       | handwritten         | dark ink on light paper, slanted, thin or thick                          |
| texture   | handwritten         | blended by difference into a coloured texture, as in MNIST-M             |
| synthetic | printed             | random colours, rotation, blur and distractors, as in SynthDigits        |
| street    | printed             | house numbers: low contrast, shading, cut neighbours, blur, sensor noise |

The handwritten digits are the 1,797 real ones of scikit-learn (8 x 8). They are split into train and test once, for all
domains made from them: no training digit of one domain is a test digit of another.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fedrbn.data.imaging import blur, mix, place, resized_samples, smooth_noise, to_bytes, uniform
from fedrbn.data.samples import DataSet, Domain, Samples
from fedrbn.data.sets.cache import Expected, TrainAndTest, cached
from fedrbn.data.sets.lettering import BOLD, Style, numbers
from fedrbn.data.sets.synth_digits import synthetic_pictures
from fedrbn.data.train_test import stratified

SIZE = 28
SEED = 20_220
VERSION = 2
"""Increased whenever the images change, so that outdated cached images are not used."""
TRAIN, TEST = 1347, 450


def digits_mini(image_size: int | None = None) -> DataSet:
    """The data set: per domain 1,347 training and 450 test images, RGB, 28 x 28 or the given size."""
    domains = []
    for index, (name, paint) in enumerate(_DOMAINS.items()):
        expected = Expected(train=TRAIN, test=TEST, shape=(3, SIZE, SIZE), classes=10)
        train, test = cached(f"digits-mini-{name}-v{VERSION}", expected, partial(_parts, paint, index))
        domains.append(Domain(name, resized_samples(train, image_size), resized_samples(test, image_size), name))
    return DataSet("digits-mini", tuple(domains), tuple("0123456789"))


class Handwriting(NamedTuple):
    """Strokes in [0, 1], [n, 8, 8], and the digits that they show."""

    strokes: Tensor
    labels: Tensor


_Paint = Callable[[Handwriting, np.random.Generator], Tensor]
"""Draws a domain's images [n, 3, 28, 28] in [0, 1] from handwritten digits, or from their labels alone."""


def _parts(paint: _Paint, domain: int) -> TrainAndTest:
    source = handwritten()
    train, test = (
        _painted(
            paint, Handwriting(source.strokes[rows], source.labels[rows]), np.random.default_rng([SEED, domain, part])
        )
        for part, rows in enumerate(stratified(source.labels.numpy(), test=0.25, seed=SEED))
    )
    return train, test


def _painted(paint: _Paint, source: Handwriting, rng: np.random.Generator) -> Samples:
    return Samples(to_bytes(paint(source, rng)), source.labels)


def handwritten() -> Handwriting:
    """scikit-learn's 1,797 digits."""
    from sklearn.datasets import load_digits  # noqa: PLC0415  (slow to import, needed only to draw)

    bunch = load_digits()
    return Handwriting(
        torch.from_numpy(bunch.images.astype(np.float32) / 16), torch.from_numpy(bunch.target.astype(np.int64))
    )


def _strokes(
    source: Handwriting, height: tuple[float, float], slant: tuple[float, float], rng: np.random.Generator
) -> Tensor:
    """The digits at full size, smoothed, each with a slightly different position, rotation and slant."""
    count = len(source.labels)
    smooth = F.interpolate(source.strokes[:, None], scale_factor=8, mode="bicubic", align_corners=False)[:, 0]
    return place(
        smooth.clamp(0, 1),
        uniform(rng, -0.08, 0.08, count, 2),
        scale=uniform(rng, *height, count) / 2,
        angle=uniform(rng, -0.12, 0.12, count),
        slant=uniform(rng, *slant, count),
        size=SIZE,
    )


def _plain(source: Handwriting, rng: np.random.Generator) -> Tensor:
    return _strokes(source, (1.6, 1.7), (0.0, 0.0), rng)[:, None].repeat(1, 3, 1, 1)


def _pen(source: Handwriting, rng: np.random.Generator) -> Tensor:
    count = len(source.labels)
    strokes = _strokes(source, (1.4, 1.8), (-0.1, 0.5), rng)
    # A lower threshold on the smooth strokes makes them thicker, like a thicker pen.
    threshold = uniform(rng, 0.25, 0.6, count)[:, None, None]
    ink_coverage = torch.sigmoid((strokes - threshold) * 14)
    paper = 0.86 + 0.1 * smooth_noise(rng, count, 1, 2, SIZE) + uniform(rng, -0.04, 0.04, count, 3)[:, :, None, None]
    ink = uniform(rng, 0.0, 0.25, count, 3) + torch.tensor([0.0, 0.0, 0.25])
    return mix(paper, ink_coverage, ink)


def _texture(source: Handwriting, rng: np.random.Generator) -> Tensor:
    count = len(source.labels)
    strokes = torch.sigmoid((_strokes(source, (1.6, 1.8), (-0.1, 0.1), rng) - 0.4) * 10)
    # Difference turns c into 1 - c, which is invisible near middle grey. Most channels share one brightness.
    dark = torch.from_numpy((rng.random((count, 1)) < 0.5) ^ (rng.random((count, 3)) < 0.3))
    base = torch.where(dark, uniform(rng, 0.05, 0.3, count, 3), uniform(rng, 0.7, 0.95, count, 3))
    grain = sum(
        strength * smooth_noise(rng, count, 3, cells, SIZE) for cells, strength in ((3, 0.15), (7, 0.15), (14, 0.12))
    )
    texture = (base[:, :, None, None] + grain).clamp(0, 1)
    return (texture - strokes[:, None]).abs()


def _synthetic(source: Handwriting, rng: np.random.Generator) -> Tensor:
    return synthetic_pictures(source.labels, rng)


_HOUSE_NUMBER = Style(
    fonts=BOLD,
    height=(1.15, 1.55),
    shift=0.1,
    angle=math.radians(8),
    slant=0.15,
    gap=(0.05, 0.2),
    lengths=(0.1, 0.4, 0.5),
)


def _street(source: Handwriting, rng: np.random.Generator) -> Tensor:
    count = len(source.labels)
    digit, neighbours = numbers(source.labels, _HOUSE_NUMBER, SIZE, rng)
    wall = uniform(rng, 0.25, 0.75, count, 1) + uniform(rng, -0.1, 0.1, count, 3)
    lighter = wall.mean(dim=1, keepdim=True) + uniform(rng, -0.15, 0.15, count, 1) < 0.5
    contrast = uniform(rng, 0.22, 0.45, count, 1)
    paint = wall + torch.where(lighter, contrast, -contrast) + uniform(rng, -0.05, 0.05, count, 3)
    shading = _gradient(count, rng) + 0.05 * smooth_noise(rng, count, 1, 4, SIZE)
    picture = mix(wall[:, :, None, None].expand(-1, -1, SIZE, SIZE), torch.maximum(digit, neighbours), paint)
    picture = blur(picture + shading, uniform(rng, 0.5, 1.2, count))
    noise = torch.from_numpy(rng.normal(0, 0.025, picture.shape).astype(np.float32))
    return picture + noise


def _gradient(count: int, rng: np.random.Generator) -> Tensor:
    """Light that falls off across the picture, in a random direction: [count, 1, size, size]."""
    axis = torch.linspace(-1, 1, SIZE)
    slope = uniform(rng, -0.15, 0.15, 2, count, 1, 1, 1)
    return slope[0] * axis + slope[1] * axis[:, None]


_DOMAINS: dict[str, _Paint] = {
    "plain": _plain,
    "pen": _pen,
    "texture": _texture,
    "synthetic": _synthetic,
    "street": _street,
}
