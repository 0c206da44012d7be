from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedrbn.data import AVAILABLE, load

needs_data = pytest.mark.skipif("FEDRBN_DATA" not in os.environ, reason="set FEDRBN_DATA to the folder with digits/")


def _archive(path: Path, **changes: np.ndarray) -> None:
    images, labels = np.zeros((3, 16, 16), np.uint8), np.array([0, 5, 9], np.uint8)
    arrays = {"train_images": images, "train_labels": labels, "test_images": images, "test_labels": labels} | changes
    np.savez(path, **{key: value for key, value in arrays.items() if value.size or value.ndim > 1})


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDRBN_DATA", str(tmp_path))
    (tmp_path / "digits").mkdir()
    return tmp_path / "digits"


def test_without_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDRBN_DATA", raising=False)
    with pytest.raises(ValueError, match=r"got no FEDRBN_DATA.*fedrbn data prepare.*set FEDRBN_DATA.*digits-mini"):
        load("digits")


def test_with_a_wrong_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDRBN_DATA", str(tmp_path))
    with pytest.raises(ValueError, match=rf"expected the folder {tmp_path}/digits.*digits-mini"):
        load("digits")


def test_with_a_missing_file(folder: Path) -> None:
    with pytest.raises(ValueError, match=rf"got no file {folder}/mnist.npz; expected a .npz with train_images"):
        load("digits")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_images": np.zeros((3, 16, 16))}, r"train_images of float64.*expected uint8"),
        ({"test_images": np.zeros((3, 16, 16, 4), np.uint8)}, r"test_images .*\(3, 16, 16, 4\)"),
        ({"train_images": np.zeros((0, 16, 16), np.uint8)}, r"train_images .*\(0, 16, 16\).*n > 0"),
        ({"train_labels": np.array([0, 5, 10], np.uint8)}, r"train_labels .*expected 3 whole numbers from 0 to 9"),
        ({"train_labels": np.array([0, -1, 2], np.int8)}, r"train_labels .*expected 3 whole numbers from 0 to 9"),
        ({"test_labels": np.array([0, 5], np.uint8)}, r"test_labels .*shape \(2,\)"),
        ({"test_labels": np.array([0.0, 5.0, 9.0])}, r"test_labels of float64"),
        ({"test_labels": np.array([])}, "it lacks test_labels"),
        ({"test_labels": np.array([{}, {}, {}], dtype=object)}, "cannot be used.*no pickled objects"),
    ],
)
def test_files_are_checked(folder: Path, changes: dict[str, np.ndarray], message: str) -> None:
    _archive(folder / "mnist.npz", **changes)
    with pytest.raises(ValueError, match=message) as caught:
        load("digits")
    assert str(folder / "mnist.npz") in str(caught.value)


def test_a_file_that_is_no_archive(folder: Path) -> None:
    (folder / "mnist.npz").write_bytes(b"not an archive")
    with pytest.raises(ValueError, match=r"mnist.npz, which cannot be used"):
        load("digits")


@pytest.mark.slow
@needs_data
def test_the_papers_digits() -> None:
    data = load("digits")
    described = AVAILABLE["digits"]
    assert tuple(domain.name for domain in data.domains) == described.domains
    assert tuple(len(domain.train) for domain in data.domains) == described.train
    assert tuple(len(domain.test) for domain in data.domains) == described.test
    assert all(domain.train.images.shape[1:] == (3, 28, 28) for domain in data.domains)
    assert data.domains[3].label == "synthdigits (regenerated)"
    mnist, _, usps, _, mnist_m = data.domains
    # Files keep their order and parts: MNIST-M is made from MNIST row by row.
    assert torch.equal(mnist.train.labels, mnist_m.train.labels)
    assert torch.equal(mnist.test.labels, mnist_m.test.labels)
    # Sizes are changed as FedBN's data were: by Pillow, bilinear.
    with np.load(Path(os.environ["FEDRBN_DATA"]) / "digits" / "usps.npz", allow_pickle=False) as archive:
        first = np.asarray(Image.fromarray(archive["train_images"][0]).resize((28, 28), Image.Resampling.BILINEAR))
    assert np.array_equal(usps.train.images[0, 1].numpy(), first)
