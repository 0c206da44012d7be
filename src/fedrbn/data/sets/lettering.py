"""Printed numbers: digits in the fonts that come with matplotlib, with neighbouring digits as in a longer number."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from fedrbn.data.imaging import place, uniform

FONTS = (
    *("DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSans-BoldOblique"),
    *("DejaVuSansMono", "DejaVuSansMono-Bold", "DejaVuSansMono-Oblique", "DejaVuSansMono-BoldOblique"),
    *("DejaVuSerif", "DejaVuSerif-Bold", "DejaVuSerif-Italic", "DejaVuSerif-BoldItalic"),
    *("STIXGeneral", "STIXGeneralBol", "STIXGeneralItalic", "STIXGeneralBolIta"),
    *("cmb10", "cmr10", "cmss10", "cmtt10"),
)
"""The shipped fonts with usable digits; the others contain symbols, or digits of uneven height."""

BOLD = tuple(font for font in FONTS if "Bol" in font or font == "cmb10")

_SIDE, _HEIGHT = 64, 40
DIGIT_HEIGHT = 2 * _HEIGHT / _SIDE
"""Height of a digit in shape coordinates, which span [-1, 1]."""


@dataclass(frozen=True)
class Digits:
    """One picture of every digit in every font: coverage [fonts, 10, h, w], and half widths [fonts, 10]."""

    shapes: Tensor
    half_widths: Tensor


@lru_cache
def digits_of(fonts: tuple[str, ...]) -> Digits:
    """Every digit of these fonts at one common height, centred."""
    import matplotlib as mpl  # noqa: PLC0415  (only its font files are needed, and only for drawing)

    folder = Path(mpl.get_data_path()) / "fonts" / "ttf"
    drawn = [[_draw(folder / f"{font}.ttf", str(digit)) for digit in range(10)] for font in fonts]
    shapes = torch.tensor(np.array(drawn, dtype=np.float32)) / 255
    columns = (shapes > 0.5).any(dim=2).sum(dim=2)
    return Digits(shapes, columns / _SIDE)


def _draw(path: Path, digit: str) -> Image.Image:
    zero = ImageFont.truetype(path, 100).getbbox("0")
    font = ImageFont.truetype(path, 100 * _HEIGHT / (zero[3] - zero[1]))
    drawn = Image.new("L", (2 * _SIDE, 2 * _SIDE))
    ImageDraw.Draw(drawn).text((_SIDE // 2, _SIDE // 2), digit, fill=255, font=font)
    ink = drawn.crop(drawn.getbbox())
    picture = Image.new("L", (_SIDE, _SIDE))
    picture.paste(ink, ((_SIDE - ink.width) // 2, (_SIDE - ink.height) // 2))
    return picture


@dataclass(frozen=True)
class Style:
    """The ranges for the random look of each number. Lengths are relative to the frame, which spans [-1, 1]."""

    fonts: tuple[str, ...]
    height: tuple[float, float]
    shift: float
    """Largest distance of the labelled digit from the centre, along each axis."""
    angle: float
    """Largest rotation in either direction, in radians."""
    slant: float
    gap: tuple[float, float]
    """Space between neighbouring digits."""
    lengths: tuple[float, ...]
    """Probabilities of numbers with 1, 2, 3 … digits; the labelled digit is a random one of them."""


def numbers(labels: Tensor, style: Style, size: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Coverage [n, size, size] of the labelled digits, and of their neighbours in the number."""
    count = len(labels)
    digits = digits_of(style.fonts)
    font = torch.from_numpy(rng.integers(len(style.fonts), size=count))
    scale = uniform(rng, *style.height, count) / DIGIT_HEIGHT
    angle, slant = uniform(rng, -style.angle, style.angle, count), uniform(rng, -style.slant, style.slant, count)
    centre = uniform(rng, -style.shift, style.shift, count, 2)
    along = torch.stack([angle.cos(), angle.sin()], dim=1)

    def drawn(digit: Tensor, offset: Tensor | float = 0) -> Tensor:
        return place(digits.shapes[font, digit], centre + offset, scale=scale, angle=angle, slant=slant, size=size)

    length = rng.choice(len(style.lengths), p=style.lengths, size=count) + 1
    position = rng.integers(length)
    neighbours = torch.zeros(count, size, size)
    for side, present in ((-1, position > 0), (1, position < length - 1)):
        other = torch.from_numpy(rng.integers(10, size=count))
        widths = digits.half_widths[font, labels] + digits.half_widths[font, other]
        offset = (side * (widths * scale + uniform(rng, *style.gap, count)))[:, None] * along
        neighbours = torch.maximum(neighbours, drawn(other, offset) * torch.from_numpy(present)[:, None, None])
    return drawn(labels), neighbours
