"""Batched drawing: place, blur, colour and texture many small images at once. Images are floats in [0, 1]."""

from __future__ import annotations

from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from fedrbn.data.memory_limit import check_memory
from fedrbn.data.samples import Samples

OVERSAMPLING = 2
"""Shapes are drawn this many times larger than wanted and averaged down, which smooths their edges."""


def uniform(rng: np.random.Generator, low: float, high: float, *shape: int) -> Tensor:
    """Independent uniform float32 draws."""
    return torch.from_numpy(rng.uniform(low, high, shape).astype(np.float32))


def place(shapes: Tensor, centre: Tensor, *, scale: Tensor, angle: Tensor, slant: Tensor, size: int) -> Tensor:
    """Draw each shape [n, h, w] into its own frame [n, size, size].

    Frame and shape both span [-1, 1]: `centre` [n, 2] is (x, y) of the shape's middle, `scale` its size in frames,
    `angle` turns it (radians, clockwise) and `slant` leans it to the right.
    """
    cos, sin = angle.cos() * scale, angle.sin() * scale
    forward = torch.stack([torch.stack([cos, -slant * cos - sin], 1), torch.stack([sin, -slant * sin + cos], 1)], 1)
    # For each pixel of the frame, its position in the shape: the inverse of the map above.
    inverse = torch.linalg.inv(forward)[:, :, :, None, None]
    pixel = (torch.arange(size * OVERSAMPLING) + 0.5) * 2 / (size * OVERSAMPLING) - 1
    x, y = (pixel - centre[:, :1])[:, None, None, :], (pixel - centre[:, 1:])[:, None, :, None]
    grid = (inverse[:, :, 0] * x + inverse[:, :, 1] * y).permute(0, 2, 3, 1)
    return F.avg_pool2d(F.grid_sample(shapes[:, None], grid, align_corners=False), OVERSAMPLING)[:, 0]


def blur(images: Tensor, sigma: Tensor) -> Tensor:
    """Gaussian blur of [n, c, h, w] with one standard deviation [n] per image, in pixels; meant for up to 2."""
    radius = 4
    offsets = torch.arange(-radius, radius + 1)
    weights = torch.exp(-0.5 * (offsets / sigma.clamp(min=0.05)[:, None]) ** 2)
    weights = (weights / weights.sum(1, keepdim=True))[:, :, None, None, None]
    height, width = images.shape[2:]
    padded = F.pad(images, [radius] * 4, mode="replicate")
    rows = sum(weights[:, i] * padded[:, :, i : i + height] for i in range(len(offsets)))
    return cast(Tensor, sum(weights[:, i] * cast(Tensor, rows)[..., i : i + width] for i in range(len(offsets))))


def smooth_noise(rng: np.random.Generator, count: int, channels: int, cells: int, size: int) -> Tensor:
    """Random fields in [-1, 1] that vary over about size / cells pixels: [count, channels, size, size]."""
    coarse = uniform(rng, -1, 1, count, channels, cells, cells)
    return F.interpolate(coarse, size=(size, size), mode="bicubic", align_corners=False).clamp(-1, 1)


def mix(background: Tensor, coverage: Tensor, colour: Tensor) -> Tensor:
    """Paint `colour` [n, 3] (or an image [n, 3, h, w]) over the background where coverage [n, h, w] is 1."""
    paint = colour if colour.ndim == 4 else colour[:, :, None, None]
    return torch.lerp(background, paint.expand_as(background), coverage[:, None])


def to_bytes(images: Tensor) -> Tensor:
    """Floats in [0, 1] as uint8 pixels."""
    return images.clamp(0, 1).mul(255).round().to(torch.uint8)


def resized(images: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    """[n, h, w] or [n, h, w, 3] pixels at size x size, by Pillow's bilinear filter, as in FedBN's data."""
    if images.shape[1:3] == (size, size):
        return images
    check_memory(len(images), size)
    scaled = [np.asarray(Image.fromarray(image).resize((size, size), Image.Resampling.BILINEAR)) for image in images]
    return np.stack(scaled)


def resized_samples(samples: Samples, size: int | None) -> Samples:
    """The samples at size x size; None leaves them as they are."""
    if size is None or tuple(samples.images.shape[2:]) == (size, size):
        return samples
    pixels = resized(samples.images.permute(0, 2, 3, 1).numpy(), size)
    return Samples(to_channels_first(pixels), samples.labels)


def to_channels_first(images: NDArray[np.uint8]) -> Tensor:
    """[n, h, w] grey or [n, h, w, 3] colour pixels as a tensor [n, 3, h, w]."""
    tensor = torch.from_numpy(np.ascontiguousarray(images))
    if tensor.ndim == 3:
        return tensor[:, None].repeat(1, 3, 1, 1)
    return tensor.permute(0, 3, 1, 2).contiguous()
