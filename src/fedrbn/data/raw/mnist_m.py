"""MNIST-M, unpacked from its authors' archive: folders of PNG files, and text files of `<file name> <digit>` lines."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedrbn.data.raw.files import (
    MEGABYTE,
    MOST_BYTES,
    RawDigits,
    Source,
    checked_digits,
    content_of,
    file_source,
    find,
    folder_source,
    image_content,
)
from fedrbn.data.sets.folder import decode
from fedrbn.errors import DataError

_MOST_TEXT = 64 * MEGABYTE


def read_mnist_m(folder: Path) -> RawDigits:
    """mnist_m_train/, mnist_m_test/ and mnist_m_{train,test}_labels.txt, here or in a folder mnist_m."""
    inside = folder / "mnist_m" if (folder / "mnist_m").is_dir() else folder
    train, train_sources = _part(inside, "train")
    test, test_sources = _part(inside, "test")
    return RawDigits(train, test, train_sources + test_sources)


def _part(folder: Path, part: str) -> tuple[tuple[NDArray[np.uint8], NDArray[np.uint8]], tuple[Source, Source]]:
    listing = find(folder, f"mnist_m_{part}_labels.txt")
    images = folder / f"mnist_m_{part}"
    names, labels = read_labels(listing)
    contents = [image_content(images / name) for name in names]
    pixels = _stacked(contents, names)
    return checked_digits(pixels, labels, listing.name), (file_source(listing), folder_source(images.name, contents))


def read_labels(path: Path) -> tuple[list[str], list[int]]:
    """File names and digits, in the order of the file, which is MNIST's."""
    names, labels = [], []
    for number, line in enumerate(content_of(path, _MOST_TEXT).splitlines(), start=1):
        name, _, label = line.decode("ascii", errors="replace").strip().rpartition(" ")
        # A name is a file in its folder, never a path out of it.
        plain = name.endswith(".png") and name == Path(name).name and name.isprintable()
        if not plain or label not in set("0123456789"):
            raise DataError(
                f"got line {number} of {path.name}: {line[:60]!r}; expected a file name such as 00000000.png, a space "
                "and a digit. Unpack the archive again."
            )
        names.append(name)
        labels.append(int(label))
    return names, labels


def _stacked(contents: list[bytes], names: list[str]) -> NDArray[np.uint8]:
    """All images in one array; they must have the same size."""
    if not names:
        return np.empty((0, 32, 32, 3), np.uint8)
    first = decode(contents[0], names[0], None)
    if len(contents) * first.size > MOST_BYTES:
        raise DataError(
            f"got {len(contents):,} images of {first.shape[1]} x {first.shape[0]}; expected at most {MOST_BYTES:,} "
            "bytes of pixels. MNIST-M has 68,002 images of 32 x 32: unpack the archive again."
        )
    pixels = np.empty((len(contents), *first.shape), np.uint8)
    for row, (content, name) in enumerate(zip(contents, names, strict=True)):
        image = decode(content, name, None)
        if image.shape != first.shape:
            raise DataError(
                f"got {name} of {image.shape[1]} x {image.shape[0]} pixels; expected {first.shape[1]} x "
                f"{first.shape[0]}, as {names[0]} has. Unpack the archive again."
            )
        pixels[row] = image
    return pixels
