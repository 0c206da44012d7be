from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedrbn.data.augment import augment, turned


def _random(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _images(count: int = 3, height: int = 6, width: int = 6) -> Tensor:
    return torch.rand(count, 3, height, width, generator=_random(0))


def _no(count: int = 3) -> Tensor:
    return torch.zeros(count, dtype=torch.bool)


@pytest.mark.parametrize(("height", "width"), [(6, 6), (7, 7), (5, 8), (256, 256)])
def test_no_mirror_and_no_angle_change_nothing(height: int, width: int) -> None:
    x = _images(3, height, width)
    assert torch.equal(turned(x, _no(), torch.zeros(3)), x)


@pytest.mark.parametrize("width", [6, 7, 256])
def test_a_mirror_is_exact_and_only_where_asked(width: int) -> None:
    x = _images(3, 6, width)
    mirrored = turned(x, torch.tensor([True, False, True]), torch.zeros(3))
    assert torch.equal(mirrored[0], x[0].flip(-1))
    assert torch.equal(mirrored[1], x[1])
    assert torch.equal(mirrored[2], x[2].flip(-1))


def test_quarter_turns_are_exact() -> None:
    # On a square, 90° counter-clockwise is what torch.rot90 does over (height, width).
    x = _images(4)
    by = torch.tensor([90.0, 180.0, -90.0, 360.0])
    for image, result, quarters in zip(x, turned(x, _no(4), by), (1, 2, -1, 0), strict=True):
        assert torch.equal(result, torch.rot90(image, quarters, (1, 2)))


def test_the_mirror_comes_before_the_rotation() -> None:
    x = _images(1)
    expected = torch.rot90(x.flip(-1), 1, (2, 3))
    assert torch.equal(turned(x, torch.tensor([True]), torch.tensor([90.0])), expected)
    assert not torch.equal(expected, torch.rot90(x, 1, (2, 3)).flip(-1))


def test_half_a_turn_of_an_oblong_is_exact() -> None:
    x = _images(1, 4, 10)
    assert torch.equal(turned(x, _no(1), torch.tensor([180.0])), x.flip(-1).flip(-2))


def test_a_rotation_keeps_distances_in_an_oblong() -> None:
    # 40 x 20, one dot 8 to the right of the middle (column 20 + 8, row 10). 30° counter-clockwise moves it to
    # 8 cos 30° = 6.93 right and 8 sin 30° = 4 up: column 26.9, row 6. Without regard to the sides it would land
    # at 8 up or 2 up. The dot is 3 x 3, so that some of it is hit.
    x = torch.zeros(1, 1, 20, 40)
    x[:, :, 9:12, 27:30] = 1
    rows, columns = torch.nonzero(turned(x, _no(1), torch.tensor([30.0]))[0, 0], as_tuple=True)
    assert rows.float().mean() == pytest.approx(6, abs=0.6)
    assert columns.float().mean() == pytest.approx(26.9, abs=0.6)


def test_corners_that_turn_in_are_black() -> None:
    result = turned(torch.ones(1, 3, 20, 20), _no(1), torch.tensor([30.0]))
    assert result[0, :, 0, 0].tolist() == [0, 0, 0]
    assert result[0, :, 10, 10].tolist() == [1, 1, 1]


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), height=st.integers(1, 12), width=st.integers(1, 12))
def test_only_pixels_of_the_image_or_black_come_out(seed: int, height: int, width: int) -> None:
    x = _images(4, height, width)
    result = augment(x, _random(seed))
    assert result.shape == x.shape
    for image, turned_image in zip(x, result, strict=True):
        assert set(turned_image.flatten().tolist()) <= {0.0, *image.flatten().tolist()}


def test_the_generator_decides() -> None:
    x = _images(8, 16, 16)
    assert torch.equal(augment(x, _random(3)), augment(x, _random(3)))
    assert not torch.equal(augment(x, _random(3)), augment(x, _random(4)))


def test_half_are_mirrored_and_angles_fill_thirty_degrees() -> None:
    # A dot on the right edge's middle row, at distance 40 of the centre of 81 x 81: it ends on the left where mirrored.
    # Its height above the middle is 40 sin(angle): at most 20, and with 2,000 draws someone comes near.
    x = torch.zeros(2000, 1, 81, 81)
    x[:, :, 39:42, 76:79] = 1
    image, row, column = torch.nonzero(augment(x, _random(0))[:, 0], as_tuple=True)
    mirrored = torch.zeros(2000, dtype=torch.bool)
    mirrored[image[column < 40]] = True
    assert mirrored.float().mean() == pytest.approx(0.5, abs=0.04)  # four standard errors of 0.011
    rise = (row - 40).abs().max()
    assert 17 <= rise <= 21  # 37 sin 30° = 18.5, give or take the dot's own size
