from __future__ import annotations

import pytest
import torch

from fedrbn.data.samples import DataSet, Domain, Samples


def _samples(count: int = 2, side: int = 4, label: int = 0) -> Samples:
    return Samples(torch.zeros(count, 3, side, side, dtype=torch.uint8), torch.full((count,), label))


def _data(*domains: Domain) -> DataSet:
    return DataSet("own", domains, ("cat", "dog"))


def test_pixels_are_floats_from_zero_to_one() -> None:
    images = torch.tensor([0, 51, 255], dtype=torch.uint8).reshape(3, 1, 1, 1)
    pixels, labels = Samples(images, torch.tensor([2, 1, 0])).pixels(slice(1, 3))
    assert pixels.flatten().tolist() == pytest.approx([0.2, 1.0])  # 51 / 255 = 1 / 5
    assert labels.tolist() == [1, 0]


def test_images_must_be_bytes() -> None:
    with pytest.raises(ValueError, match=r"got images of torch.float32.*expected uint8"):
        Samples(torch.zeros(2, 3, 4, 4), torch.zeros(2, dtype=torch.int64))


def test_one_label_per_image() -> None:
    with pytest.raises(ValueError, match=r"expected int64 \[2\]"):
        Samples(torch.zeros(2, 3, 4, 4, dtype=torch.uint8), torch.zeros(3, dtype=torch.int64))


@pytest.mark.parametrize(
    ("domains", "message"),
    [
        ((), "at least one"),
        ((Domain("a", _samples(), _samples(), "a"), Domain("a", _samples(), _samples(), "b")), "with a unique name"),
        ((Domain("a", _samples(), _samples(0), "a"),), "no images in the test part of 'a'"),
        ((Domain("a", _samples(), _samples(side=5), "a"),), r"\(3, 5, 5\).*expected \(3, 4, 4\)"),
        ((Domain("a", _samples(label=2), _samples(), "a"),), "labels from 2 to 2.*expected 0 to 1"),
        ((Domain("a", _samples(label=-1), _samples(), "a"),), "labels from -1 to -1.*expected 0 to 1"),
    ],
)
def test_a_data_set_must_be_coherent(domains: tuple[Domain, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _data(*domains)
