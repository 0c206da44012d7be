"""FedBN's augmentation of photographs, for training only: a random mirror image, and a random rotation by up to 30°."""

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

MOST_DEGREES = 30.0


def augment(x: Tensor, generator: Generator) -> Tensor:
    """Each image [n, c, h, w] mirrored with probability 1/2, then rotated by an angle drawn evenly from ±30°."""
    # Always drawn on the CPU, so that a seed gives the same rotations on every device.
    mirror = torch.rand(len(x), generator=generator) < 0.5
    degrees = (torch.rand(len(x), generator=generator) * 2 - 1) * MOST_DEGREES
    return turned(x, mirror, degrees)


def turned(x: Tensor, mirror: Tensor, degrees: Tensor) -> Tensor:
    """Images mirrored left to right where `mirror` [n] says so, then rotated counter-clockwise by `degrees` [n].

    One lookup does both. It takes the nearest pixel, so that no new pixel values appear, and black beyond the edges.
    """
    height, width = x.shape[2:]
    angle = (degrees * (math.pi / 180)).to(x)
    cos, sin = angle.cos(), angle.sin()
    side = 1 - 2 * mirror.to(x)
    # The source of each pixel of the result: undo the rotation, then the mirror. Coordinates run from -1 to 1 along
    # each side, so the rotation must be scaled if the sides differ; y points down.
    zero = torch.zeros_like(cos)
    rows = [
        torch.stack([side * cos, -side * sin * (height / width), zero], dim=1),
        torch.stack([sin * (width / height), cos, zero], dim=1),
    ]
    grid = F.affine_grid(torch.stack(rows, dim=1), list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, mode="nearest", padding_mode="zeros", align_corners=False)
