"""MNIST's idx files: two zero bytes, a type, the number of dimensions, the dimensions as big-endian uint32, data."""

from __future__ import annotations

import math
import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedrbn.data.raw.files import RawDigits, checked_digits, content_of, file_source, find
from fedrbn.errors import DataError

_UNSIGNED_BYTE = 8
_PARTS = {"train": "train", "test": "t10k"}


def read_mnist(folder: Path) -> RawDigits:
    """The four files of MNIST, gzipped or not."""
    paths = {
        part: (_find(folder, f"{prefix}-images", "idx3-ubyte"), _find(folder, f"{prefix}-labels", "idx1-ubyte"))
        for part, prefix in _PARTS.items()
    }
    parts = {
        part: checked_digits(read_idx(images, 3), read_idx(labels, 1), images.name)
        for part, (images, labels) in paths.items()
    }
    sources = tuple(file_source(path) for pair in paths.values() for path in pair)
    return RawDigits(parts["train"], parts["test"], sources)


def _find(folder: Path, stem: str, ending: str) -> Path:
    """Find either spelling: with a dash as published, or with a dot as some programs unpack it."""
    return find(folder, *(f"{stem}{mark}{ending}{suffix}" for mark in "-." for suffix in (".gz", "")))


def read_idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """An idx file of unsigned bytes with this number of dimensions."""
    content = content_of(path)
    header = 4 + 4 * dimensions
    expected = struct.pack(">HBB", 0, _UNSIGNED_BYTE, dimensions)
    if content[:4] != expected or len(content) < header:
        raise DataError(
            f"got {path.name}, which starts with {content[:4].hex() or 'nothing'}; expected {expected.hex()}: an idx "
            f"file of unsigned bytes with {dimensions} dimension(s). Images and labels may be swapped, or it is "
            "another file: download it again."
        )
    shape = struct.unpack(f">{dimensions}I", content[4:header])
    if len(content) - header != math.prod(shape):
        raise DataError(
            f"got {path.name} with {len(content) - header:,} bytes of data; expected {math.prod(shape):,}, because its "
            f"dimensions are {' x '.join(map(str, shape))}. Download it again."
        )
    if 0 in shape:
        raise DataError(f"got {path.name} with dimensions {shape}; expected none of them 0. Download it again.")
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)
