"""The paper's Digits: MNIST, SVHN, USPS, SynthDigits and MNIST-M, in this order, 28 x 28 RGB.

Four come from files `$FEDRBN_DATA/digits/<name>.npz` with uint8 `train_images`, `train_labels`, `test_images` and
`test_labels`; SynthDigits is generated again. Row i of MNIST and of MNIST-M shows the same handwritten digit, so the
given train and test parts are kept: a new split would put test digits into the training data.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedrbn.data.imaging import resized, resized_samples, to_channels_first
from fedrbn.data.prepared import prepared_folder, read_archive
from fedrbn.data.samples import DataSet, Domain, Samples
from fedrbn.data.sets.synth_digits import LABEL, synth_digits
from fedrbn.errors import DataError

SIZE = 28
DOMAINS = ("mnist", "svhn", "usps", "synthdigits", "mnist_m")


def digits(image_size: int | None = None) -> DataSet:
    """The data set, at 28 x 28 or the given size."""
    folder = prepared_folder("digits", "digits")
    size = image_size or SIZE
    domains = tuple(_synthetic(size) if name == "synthdigits" else _real(folder, name, size) for name in DOMAINS)
    return DataSet("digits", domains, tuple("0123456789"))


def _synthetic(size: int) -> Domain:
    train, test = synth_digits()
    return Domain("synthdigits", resized_samples(train, size), resized_samples(test, size), LABEL)


def _real(folder: Path, name: str, size: int) -> Domain:
    path = folder / f"{name}.npz"
    arrays = read_archive(path, ("train_images", "train_labels", "test_images", "test_labels"))
    train, test = (
        _checked(path, part, arrays[f"{part}_images"], arrays[f"{part}_labels"], size) for part in ("train", "test")
    )
    return Domain(name, train, test, name)


def _checked(path: Path, part: str, images: NDArray[Any], labels: NDArray[Any], size: int) -> Samples:
    grey_or_colour = images.ndim == 3 or (images.ndim == 4 and images.shape[3] == 3)
    if images.dtype != np.uint8 or not grey_or_colour or not len(images):
        raise DataError(
            f"got {part}_images of {images.dtype} and shape {images.shape} in {path}; expected uint8 pixels "
            "[n, height, width] or [n, height, width, 3] with n > 0. Prepare the file again."
        )
    if labels.dtype.kind not in "ui" or labels.shape != images.shape[:1] or labels.min() < 0 or labels.max() > 9:
        raise DataError(
            f"got {part}_labels of {labels.dtype}, shape {labels.shape} and values {np.unique(labels)[:12]} in {path}; "
            f"expected {len(images)} whole numbers from 0 to 9, one per image. Prepare the file again."
        )
    return Samples(to_channels_first(resized(images, size)), torch.from_numpy(labels.astype(np.int64)))
