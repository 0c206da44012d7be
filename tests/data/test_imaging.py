from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from PIL import Image

from fedrbn.data.imaging import blur, mix, place, resized, smooth_noise, to_bytes, to_channels_first, uniform


def _place(
    shape: torch.Tensor, x: float = 0, y: float = 0, scale: float = 1, angle: float = 0, slant: float = 0
) -> torch.Tensor:
    one = torch.ones(1)
    centre = torch.tensor([[x, y]])
    return place(shape[None], centre, scale=scale * one, angle=angle * one, slant=slant * one, size=shape.shape[-1])[0]


def _middle(image: torch.Tensor) -> tuple[float, float]:
    """Centre of mass (x, y) in pixels."""
    columns, rows = torch.arange(image.shape[1]), torch.arange(image.shape[0])
    return float((image.sum(0) * columns).sum() / image.sum()), float((image.sum(1) * rows).sum() / image.sum())


def _spot(x: int, y: int, side: int = 28) -> torch.Tensor:
    shape = torch.zeros(side, side)
    shape[y - 1 : y + 2, x - 1 : x + 2] = 1
    return shape


def test_a_shape_moves_to_its_centre() -> None:
    # The frame spans [-1, 1] over 28 pixels: 0.5 is 7 pixels.
    assert _middle(_place(_spot(10, 12), x=0.5, y=-0.25)) == pytest.approx((10 + 7, 12 - 3.5), abs=0.05)


def test_a_quarter_turn_is_clockwise() -> None:
    # The middle of the frame is 13.5. A spot 6.5 to its right turns to 6.5 below it.
    assert _middle(_place(_spot(20, 14), angle=math.pi / 2)) == pytest.approx((13.5 - 0.5, 20), abs=0.05)


def test_slant_leans_the_top_to_the_right() -> None:
    # A spot 7.5 above the middle moves right by slant x 7.5.
    assert _middle(_place(_spot(13, 6), slant=0.4)) == pytest.approx((13 + 0.4 * 7.5, 6), abs=0.05)


def test_scale_one_half_covers_a_quarter() -> None:
    drawn = _place(torch.ones(28, 28), scale=0.5)
    assert float(drawn.sum()) == pytest.approx(14 * 14, rel=0.05)
    assert _middle(drawn) == pytest.approx((13.5, 13.5), abs=0.01)


def test_blur_is_gaussian_per_image_and_keeps_brightness() -> None:
    images = torch.zeros(2, 1, 21, 21)
    images[:, :, 10, 10] = 1
    sharp, soft = blur(images, torch.tensor([0.0, 1.0]))
    assert torch.equal(sharp, images[0])
    assert float(soft.sum()) == pytest.approx(1, abs=1e-5)
    # One step from the centre the Gaussian with σ = 1 falls by exp(-1/2).
    assert float(soft[0, 10, 11] / soft[0, 10, 10]) == pytest.approx(math.exp(-0.5), abs=1e-4)


def test_mix_paints_by_coverage() -> None:
    coverage = torch.tensor([[[0.0, 0.25, 1.0]]])
    painted = mix(torch.full((1, 3, 1, 3), 0.2), coverage, torch.tensor([[1.0, 0.2, 0.6]]))
    assert painted[0, 0, 0].tolist() == pytest.approx([0.2, 0.4, 1.0])  # 0.2 + 0.25 * 0.8 = 0.4
    assert painted[0, 1, 0].tolist() == pytest.approx([0.2, 0.2, 0.2])


def test_noise_is_seeded_bounded_and_smooth() -> None:
    noise = smooth_noise(np.random.default_rng(1), 4, 3, 2, 28)
    assert torch.equal(noise, smooth_noise(np.random.default_rng(1), 4, 3, 2, 28))
    assert noise.shape == (4, 3, 28, 28)
    assert float(noise.abs().max()) <= 1
    # Two cells across 28 pixels: at most the whole range of 2 over about 14 pixels, with some overshoot.
    assert float(noise.diff(dim=3).abs().max()) < 2 * 2 / 14


def test_uniform_keeps_to_its_range() -> None:
    draws = uniform(np.random.default_rng(0), 2, 3, 1000)
    assert draws.dtype == torch.float32
    assert 2 <= float(draws.min()) < 2.02
    assert 2.98 < float(draws.max()) <= 3


def test_bytes_are_rounded_and_clamped() -> None:
    assert to_bytes(torch.tensor([-1.0, 0.0, 0.5, 1.0, 2.0])).tolist() == [0, 0, 128, 255, 255]  # 127.5 to even


def test_resizing_is_pillows_bilinear_and_grey_becomes_three_channels() -> None:
    images = np.random.default_rng(0).integers(256, size=(2, 16, 16), dtype=np.uint8)
    tensor = to_channels_first(resized(images, 28))
    expected = np.asarray(Image.fromarray(images[1]).resize((28, 28), Image.Resampling.BILINEAR))
    assert tensor.shape == (2, 3, 28, 28)
    assert all(np.array_equal(tensor[1, channel].numpy(), expected) for channel in range(3))


def test_channels_come_first() -> None:
    images = np.arange(12, dtype=np.uint8).reshape(1, 2, 2, 3)
    assert to_channels_first(images)[0, 2].tolist() == [[2, 5], [8, 11]]
