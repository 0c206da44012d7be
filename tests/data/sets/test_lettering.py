from __future__ import annotations

import numpy as np
import pytest
import torch

from fedrbn.data.sets.lettering import BOLD, FONTS, Style, digits_of, numbers


def _style(*lengths: float) -> Style:
    return Style(FONTS, height=(1.2, 1.2), shift=0, angle=0, slant=0, gap=(0.1, 0.1), lengths=lengths)


@pytest.mark.parametrize("font", FONTS)
def test_every_font_has_ten_different_digits_of_full_height(font: str) -> None:
    shapes = digits_of((font,)).shapes[0]
    rows = (shapes > 0.5).any(dim=2)
    # 40 of 64 rows for the zero; the others differ by what designers call overshoot.
    assert all(36 <= int(row.sum()) <= 44 for row in rows)
    difference = (shapes[:, None] - shapes[None]).abs().mean(dim=(2, 3)) + torch.eye(10)
    assert float(difference.min()) > 0.01


def test_digits_are_centred() -> None:
    shapes = digits_of(FONTS).shapes > 0.5
    for axis in (2, 3):
        inked = shapes.any(dim=axis).int()
        first, last = inked.argmax(dim=2), 63 - inked.flip(2).argmax(dim=2)
        assert int((first + last - 63).abs().max()) <= 2  # twice the distance from the middle, in pixels


def test_bold_fonts_are_bold() -> None:
    assert digits_of(BOLD).shapes.mean() > 1.3 * digits_of(tuple(set(FONTS) - set(BOLD))).shapes.mean()


def test_single_digits_have_no_neighbours() -> None:
    digit, neighbours = numbers(torch.arange(10), _style(1.0), 28, np.random.default_rng(0))
    assert float(neighbours.max()) == 0
    # 1.2 of a frame that spans 2 is 0.6 x 28 = 16.8 pixels.
    heights = (digit > 0.5).any(dim=2).sum(dim=1)
    assert heights.min() >= 15
    assert heights.max() <= 18


def test_neighbours_stand_beside_the_labelled_digit() -> None:
    digit, neighbours = numbers(torch.full((200,), 8), _style(0.0, 0.0, 1.0), 28, np.random.default_rng(0))
    assert float((digit * neighbours).max()) < 0.5
    left, right = (neighbours[:, :, half].amax(dim=(1, 2)) > 0.5 for half in (slice(0, 14), slice(14, 28)))
    # In a number of three digits the labelled one is first, second or third: both sides, or one, but never neither.
    assert bool((left | right).all())
    assert 0.2 < float((left & right).float().mean()) < 0.5
