from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from fedrbn.attacks.corruptions import KINDS, Corruption, CorruptionKind, Oblivious


def seed(number: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(number)


every_kind = pytest.mark.parametrize("kind", KINDS)


@every_kind
@pytest.mark.parametrize("shape", [(3, 3, 32, 32), (2, 1, 28, 28), (1, 3, 20, 24)], ids=str)
def test_stays_in_the_pixel_range_and_grows_with_severity(kind: CorruptionKind, shape: tuple[int, ...]) -> None:
    patches = torch.rand(*shape[:2], 4, 4, generator=seed(1)).round()
    x = F.interpolate(patches, size=shape[2:], mode="bilinear").clamp(0, 1)  # like a photograph: mostly smooth
    changes = []
    for severity in range(1, 6):
        corrupted = Corruption(kind, severity)(x, seed())
        assert corrupted.shape == x.shape
        assert corrupted.min() >= 0
        assert corrupted.max() <= 1
        changes.append(float((corrupted - x).abs().mean()))
    assert changes[0] > 0
    assert changes[4] > 1.2 * changes[0]
    assert changes == sorted(changes) or kind == "pixelate"  # where blocks happen to meet edges, it varies


@every_kind
def test_a_sample_is_corrupted_on_its_own_and_deterministically(kind: CorruptionKind) -> None:
    x = torch.rand(4, 3, 16, 16, generator=seed(1), dtype=torch.float64)
    corruption = Corruption(kind)
    both = corruption(x, seed())
    assert torch.equal(both, corruption(x, seed()))
    torch.testing.assert_close(both[:1], corruption(x[:1], seed()))
    assert torch.equal(both, corruption(x, seed(1))) == (kind != "gaussian-noise")
    assert both.dtype == torch.float64


def test_noise_has_its_sigma() -> None:
    # Around 0.5 nothing is clipped: the sample deviation of 40,000 draws is within 2 % of σ.
    x = torch.full((4, 1, 100, 100), 0.5)
    noise = Corruption("gaussian-noise", 5)(x, seed()) - x
    assert float(noise.std()) == pytest.approx(0.10, rel=0.02)
    assert float(noise.mean()) == pytest.approx(0, abs=0.002)


def test_blur_of_a_point_is_a_gaussian() -> None:
    # Side 32, severity 5: σ = 1. One row away the value is exp(−1/2) of the centre's, diagonally exp(−1).
    x = torch.zeros(1, 1, 32, 32, dtype=torch.float64)
    x[0, 0, 16, 16] = 1
    blurred = Corruption("gaussian-blur", 5)(x, seed())[0, 0]
    assert float(blurred.sum()) == pytest.approx(1)
    assert float(blurred[17, 16] / blurred[16, 16]) == pytest.approx(0.6065306597)
    assert float(blurred[17, 17] / blurred[16, 16]) == pytest.approx(0.3678794412)
    assert float(blurred[16, 18] / blurred[16, 16]) == pytest.approx(0.1353352832)


def test_blur_widens_with_the_image_and_keeps_constants() -> None:
    # Side 64: σ = 2, so one row away the value is exp(−1/8) of the centre's.
    x = torch.zeros(1, 1, 64, 64, dtype=torch.float64)
    x[0, 0, 32, 32] = 1
    blurred = Corruption("gaussian-blur", 5)(x, seed())[0, 0]
    assert float(blurred[33, 32] / blurred[32, 32]) == pytest.approx(0.8824969026)
    flat = torch.full((1, 3, 20, 20), 0.7, dtype=torch.float64)
    torch.testing.assert_close(Corruption("gaussian-blur", 5)(flat, seed()), flat)


def test_contrast_shrinks_towards_the_mean_of_each_channel() -> None:
    # Severity 2 halves it. Channel 0 has mean 0.5: 0 → 0.25, 1 → 0.75. Channel 1 has mean 0.3: 0.2 → 0.25, 0.4 → 0.35.
    x = torch.tensor([[[[0.0, 1.0]], [[0.2, 0.4]]]])
    torch.testing.assert_close(Corruption("contrast", 2)(x, seed()), torch.tensor([[[[0.25, 0.75]], [[0.25, 0.35]]]]))


def test_pixelate_averages_and_repeats() -> None:
    # Severity 2 keeps half of 4 pixels a side: blocks of 2 × 2 become their mean.
    x = torch.arange(16, dtype=torch.float64).reshape(1, 1, 4, 4) / 15
    means = torch.tensor([[2.5, 4.5], [10.5, 12.5]], dtype=torch.float64) / 15
    expected = means.repeat_interleave(2, 0).repeat_interleave(2, 1)
    torch.testing.assert_close(Corruption("pixelate", 2)(x, seed())[0, 0], expected)


def test_pixelate_shares_pixels_between_intervals() -> None:
    # Severity 2 turns 5 columns into int(2.5) = 2 of 2.5 each: (a + b + c/2) / 2.5 and (c/2 + d + e) / 2.5. Going back,
    # the centres 0.5, 1.5, 2.5, 3.5, 4.5 lie in intervals 0, 0, on the border (which belongs to 1), 1, 1.
    x = torch.tensor([0.0, 0.5, 1.0, 0.25, 0.5], dtype=torch.float64).expand(1, 1, 2, 5)
    expected = torch.tensor([0.4, 0.4, 0.5, 0.5, 0.5], dtype=torch.float64).expand(2, 5)
    torch.testing.assert_close(Corruption("pixelate", 2)(x, seed())[0, 0], expected)


def test_an_oblivious_adversary_asks_nothing() -> None:
    x, y = torch.rand(2, 1, 8, 8, generator=seed(1)), torch.tensor([0, 1])

    def refuse(pixels: torch.Tensor) -> torch.Tensor:
        raise AssertionError("the network is not asked")

    corruption = Corruption("gaussian-noise")
    assert torch.equal(Oblivious(corruption)(refuse, x, y, seed()), corruption(x, seed()))


@every_kind
def test_an_empty_batch_stays_empty(kind: CorruptionKind) -> None:
    assert Corruption(kind)(torch.empty(0, 1, 8, 8), seed()).shape == (0, 1, 8, 8)


def test_refuses_what_does_not_exist() -> None:
    with pytest.raises(ValueError, match="got corruption 'fog'; expected one of gaussian-noise, gaussian-blur"):
        Corruption("fog")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="got severity 6; expected 1"):
        Corruption("contrast", 6)
    with pytest.raises(ValueError, match=r"got pixels of shape \(2, 64\)"):
        Corruption("contrast")(torch.zeros(2, 64), seed())
