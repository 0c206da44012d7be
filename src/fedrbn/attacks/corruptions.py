"""Common corruptions (Hendrycks & Dietterich 2019): image degradations without an adversary, at severities 1 to 5.

The strengths are those of CIFAR-10-C, made for images of 32 × 32 pixels. The width of the blur scales with the image.
Pixelate uses those of ImageNet-C: CIFAR-10-C keeps 65 to 95 % of each side, which does not order by severity.
Whole batches of pixels in [0, 1] are corrupted at once, and the result is clipped to [0, 1].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from fedrbn.attacks.protocols import Logits, check_images
from fedrbn.errors import AttackError

CorruptionKind: TypeAlias = Literal["gaussian-noise", "gaussian-blur", "contrast", "pixelate"]

KINDS: tuple[CorruptionKind, ...] = get_args(CorruptionKind)

_STRENGTH: dict[CorruptionKind, tuple[float, ...]] = {
    "gaussian-noise": (0.04, 0.06, 0.08, 0.09, 0.10),
    "gaussian-blur": (0.4, 0.6, 0.7, 0.8, 1.0),
    "contrast": (0.75, 0.5, 0.4, 0.3, 0.15),
    "pixelate": (0.6, 0.5, 0.4, 0.3, 0.25),
}
"""σ of the noise; σ of the blur in pixels of a 32-pixel side; remaining contrast; remaining part of each side."""


@dataclass(frozen=True)
class Corruption:
    """One corruption at one severity, called as `corruption(x, generator)`; only noise draws random numbers."""

    kind: CorruptionKind
    severity: int = 3

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise AttackError(f"got corruption {self.kind!r}; expected one of {', '.join(KINDS)}. Choose one of these.")
        if self.severity not in range(1, 6):
            raise AttackError(f"got severity {self.severity}; expected 1 (mild) to 5 (severe). Choose one of these.")

    @torch.no_grad()
    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """The corrupted pixels of [n, channels, height, width]."""
        check_images(x)
        if not len(x):
            return x.clone()
        strength = _STRENGTH[self.kind][self.severity - 1]
        match self.kind:
            case "gaussian-noise":
                noise = torch.randn(x.shape, generator=generator, device=generator.device, dtype=x.dtype)
                changed = x + strength * noise.to(x.device)
            case "gaussian-blur":
                changed = _blurred(x, strength * x.shape[-1] / 32)
            case "contrast":
                mean = x.mean((2, 3), keepdim=True)
                changed = mean + strength * (x - mean)
            case "pixelate":
                changed = _pixelated(x, strength)
        return changed.clamp(0, 1)


@dataclass(frozen=True)
class Oblivious:
    """A corruption in place of an attack on a classifier: it uses neither the network nor the labels."""

    corruption: Corruption

    def __call__(self, logits: Logits, x: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:  # noqa: ARG002
        """The corrupted pixels."""
        return self.corruption(x, generator)


def gaussian_noise(severity: int = 3) -> Oblivious:
    """Independent noise on every pixel."""
    return Oblivious(Corruption("gaussian-noise", severity))


def gaussian_blur(severity: int = 3) -> Oblivious:
    """A Gaussian blur."""
    return Oblivious(Corruption("gaussian-blur", severity))


def contrast(severity: int = 3) -> Oblivious:
    """Pixels moved towards their channel's mean."""
    return Oblivious(Corruption("contrast", severity))


def pixelate(severity: int = 3) -> Oblivious:
    """Fewer, larger pixels."""
    return Oblivious(Corruption("pixelate", severity))


def _blurred(x: Tensor, sigma: float) -> Tensor:
    """Convolution with a Gaussian, cut at 4 σ, along rows and then columns; border pixels are repeated outwards."""
    reach = max(1, round(4 * sigma))
    place = torch.arange(-reach, reach + 1, dtype=x.dtype, device=x.device)
    kernel = (-0.5 * (place / sigma) ** 2).exp()
    kernel = (kernel / kernel.sum()).expand(x.shape[1], 1, 1, -1)
    padded = F.pad(x, (reach, reach, reach, reach), mode="replicate")
    rows = F.conv2d(padded, kernel, groups=x.shape[1])
    return F.conv2d(rows, kernel.transpose(2, 3), groups=x.shape[1])


def _pixelated(x: Tensor, part: float) -> Tensor:
    """Average into fewer pixels, then repeat those up to the original size."""
    height, width = x.shape[2:]
    rows, columns = (_averaging(side, max(1, int(part * side)), x) for side in (height, width))
    return F.interpolate(rows @ x @ columns.T, size=(height, width), mode="nearest-exact")


def _averaging(side: int, count: int, x: Tensor) -> Tensor:
    """The matrix [count, side] that averages `side` pixels over `count` equal intervals, parts of pixels included."""
    edges = torch.arange(count + 1, dtype=x.dtype, device=x.device) * (side / count)
    pixel = torch.arange(side, dtype=x.dtype, device=x.device)
    overlap = torch.minimum(edges[1:, None], pixel + 1) - torch.maximum(edges[:-1, None], pixel)
    return overlap.clamp_min(0) * (count / side)
