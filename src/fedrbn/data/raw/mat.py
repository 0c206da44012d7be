"""SVHN's cropped digits: a reader for the numeric arrays of a MATLAB version 5 file, and nothing else.

The file is a header of 128 bytes and a sequence of elements. An element is a type and a size (uint32 each), its data,
and padding to eight bytes; data of up to four bytes may be inside the tag itself. An array is an element whose data are
elements too: flags, dimensions, name, values. Each array may be zlib-compressed.

SciPy's reader also accepts nested cells, structures and objects, and a file that nests them deeply crashes the process
with a segmentation fault. Downloads are not trusted, so this reader accepts only flat arrays up to a size limit.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrbn.data.raw.files import MOST_BYTES, RawDigits, broken, checked_digits, content_of, file_source, find
from fedrbn.errors import DataError

_HEADER = 128
_MATRIX, _COMPRESSED = 14, 15
_MOST_DIMENSIONS = 32
_TYPES = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}


def read_svhn(folder: Path) -> RawDigits:
    """train_32x32.mat and test_32x32.mat: X [32, 32, 3, n] and y [n, 1], where 10 stands for the digit 0."""
    train, test = (find(folder, f"{part}_32x32.mat") for part in ("train", "test"))
    return RawDigits(_digits(train), _digits(test), (file_source(train), file_source(test)))


def _digits(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    arrays = read_mat(path)
    if not {"X", "y"} <= arrays.keys():
        raise DataError(
            f"got {path.name} with the arrays {sorted(arrays)}; expected X and y. Download the cropped digits "
            "(format 2) of SVHN, not the full numbers."
        )
    images, labels = arrays["X"], arrays["y"].reshape(-1)
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[:3] != (32, 32, 3):
        raise DataError(
            f"got {path.name} with X of {images.dtype} and shape {images.shape}; expected uint8 (32, 32, 3, n). "
            "Download it again."
        )
    pixels = np.ascontiguousarray(images.transpose(3, 0, 1, 2))
    return checked_digits(pixels, np.where(labels == 10, 0, labels), path.name)


def read_mat(path: Path) -> dict[str, NDArray[Any]]:
    """The real numeric arrays at the top of a version 5 file, by name."""
    content = content_of(path)
    order = {b"IM": "<", b"MI": ">"}.get(content[126:_HEADER])
    if order is None or not content.startswith(b"MATLAB 5.0"):
        raise DataError(
            f"got {path.name}, which is not a MATLAB version 5 file; expected one. Download it again (files saved with "
            "-v7.3 must be saved with -v7)."
        )
    try:
        return dict(_array(element, order) for element in _matrices(memoryview(content)[_HEADER:], order, path.name))
    except (struct.error, zlib.error, KeyError, UnicodeDecodeError, _Malformed) as error:
        raise broken(path.name, f"malformed element: {error}") from error


class _Malformed(Exception):  # noqa: N818  (never leaves this file)
    """Something that is not a flat numeric array."""


def _matrices(content: memoryview, order: str, name: str) -> Iterator[memoryview]:
    """The decompressed data of every top-level array; their total size is limited."""
    left = MOST_BYTES
    for kind, data in _elements(content, order):
        if kind == _COMPRESSED:
            unpack = zlib.decompressobj()
            inflated = memoryview(unpack.decompress(data, left + 1))
            if len(inflated) > left:
                raise DataError(
                    f"got {name}, whose arrays unpack to more than {MOST_BYTES:,} bytes; expected at most this "
                    "size. It is not the published file: download it again."
                )
            if not unpack.eof:
                raise _Malformed("the compressed data are cut off")
            left -= len(inflated)
            kind, data = next(_elements(inflated, order), (0, inflated))  # noqa: PLW2901
        if kind != _MATRIX:
            raise _Malformed(f"type {kind} instead of an array")
        yield data


def _elements(content: memoryview, order: str) -> Iterator[tuple[int, memoryview]]:
    """Type and data of each element."""
    position = 0
    while position < len(content):
        first, size = struct.unpack_from(f"{order}II", content, position)
        if first >> 16:  # the short form: size and type share four bytes, the data are the other four
            kind, size, start, end = first & 0xFFFF, first >> 16, position + 4, position + 8
        else:
            # Only compressed elements are not padded to eight bytes.
            kind, start = first, position + 8
            end = start + (size if kind == _COMPRESSED else -(-size // 8) * 8)
        # Writers may omit the padding after the last value.
        if start + size > min(end, len(content)):
            raise _Malformed(f"{size:,} bytes announced where {len(content) - start:,} are left")
        yield kind, content[start : start + size]
        position = end


def _array(data: memoryview, order: str) -> tuple[str, NDArray[Any]]:
    parts = list(_elements(data, order))
    if len(parts) != 4:
        raise _Malformed(f"{len(parts)} parts instead of flags, dimensions, name and values")
    _, (_, sizes), (_, name), (kind, values) = parts
    shape = struct.unpack(f"{order}{len(sizes) // 4}i", sizes)
    dtype = np.dtype(order + _TYPES[kind])
    if min(shape, default=0) < 1 or len(shape) > _MOST_DIMENSIONS or math.prod(shape) * dtype.itemsize != len(values):
        raise _Malformed(f"{len(values):,} bytes of values for dimensions {shape}")
    return bytes(name).decode("ascii"), np.frombuffer(values, dtype).reshape(shape, order="F")
