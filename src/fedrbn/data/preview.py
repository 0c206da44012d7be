"""A picture of a data set: one labelled block of images per domain."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from fedrbn.data.samples import DataSet, Samples

_CELL, _GAP, _CAPTION = 56, 4, 22


def contact_sheet(dataset: DataSet, path: Path, rows: int = 4, columns: int = 12) -> None:
    """Write a PNG with rows x columns training images of every domain, cycling through the classes."""
    pitch = _CELL + _GAP
    strip = _CAPTION + rows * pitch
    sheet = Image.new("RGB", (columns * pitch + _GAP, len(dataset.domains) * strip + _GAP), "white")
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(14)
    for number, domain in enumerate(dataset.domains):
        top = number * strip
        caption = f"{domain.label}   ({len(domain.train):,} train, {len(domain.test):,} test)"
        pen.text((_GAP, top + 3), caption, fill="black", font=font)
        for cell, row in enumerate(_in_turn(domain.train, rows * columns)):
            pixels: NDArray[np.uint8] = domain.train.images[row].permute(1, 2, 0).numpy()
            corner = (_GAP + cell % columns * pitch, top + _CAPTION + cell // columns * pitch)
            sheet.paste(_thumbnail(pixels), corner)
    sheet.save(path, format="PNG")


def _in_turn(samples: Samples, count: int) -> list[int]:
    """Positions of up to `count` samples: the first of every class, then the second of every class, …"""
    by_class = [torch.nonzero(samples.labels == label)[:, 0].tolist() for label in np.unique(samples.labels.numpy())]
    turns = max(len(rows) for rows in by_class)
    return [rows[turn] for turn in range(turns) for rows in by_class if turn < len(rows)][:count]


def _thumbnail(pixels: NDArray[np.uint8]) -> Image.Image:
    """Enlarge small images with visible pixels, and reduce large ones smoothly."""
    image = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels).convert("RGB")
    filter_ = Image.Resampling.NEAREST if image.width <= _CELL else Image.Resampling.LANCZOS
    return image.resize((_CELL, _CELL), filter_)
