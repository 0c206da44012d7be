"""USPS in its two common forms: LIBSVM text (usps.bz2, usps.t.bz2) and HDF5 (usps.h5)."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrbn.data.raw.files import MEGABYTE, RawDigits, broken, checked_digits, content_of, file_source, find
from fedrbn.errors import DataError

SIDE = 16
_PIXELS = SIDE * SIDE
_MOST_TEXT = 256 * MEGABYTE
_MOST_ROWS = 100_000
"""Maximum number of rows; USPS has 9,298. This many are 205 MB of numbers, which a tiny file could claim."""


def read_usps(folder: Path) -> RawDigits:
    """Read the form that is in the folder; HDF5 is preferred."""
    if (folder / "usps.h5").is_file():
        return _read_hdf5(folder / "usps.h5")
    train, test = find(folder, "usps.bz2", "usps", "usps.h5"), find(folder, "usps.t.bz2", "usps.t")
    return RawDigits(read_libsvm(train), read_libsvm(test), (file_source(train), file_source(test)))


def read_libsvm(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Lines `label index:value …` with labels 1 to 10 for the digits 0 to 9, and values in [-1, 1]."""
    lines = content_of(path, _MOST_TEXT).splitlines()
    if len(lines) > _MOST_ROWS:
        raise DataError(f"got {path.name} with {len(lines):,} lines; expected at most {_MOST_ROWS:,}.")
    values, labels = np.zeros((len(lines), _PIXELS)), np.zeros(len(lines))
    for row, line in enumerate(lines):
        try:
            label, *pairs = line.split()
            # The colons become spaces: index, value, index, value, …
            numbers = np.array(b" ".join(pairs).replace(b":", b" ").split(), dtype=np.float64).reshape(-1, 2)
            index = numbers[:, 0].astype(np.int64) - 1
            labels[row] = int(label)
        except (ValueError, OverflowError, RuntimeWarning):
            raise _wrong_line(path, row, line) from None
        # Rising indices: no index occurs twice. In this format, missing values are 0.
        if len(index) and (index[0] < 0 or index[-1] >= _PIXELS or (np.diff(index) <= 0).any()):
            raise _wrong_line(path, row, line)
        values[row, index] = numbers[:, 1]
    return checked_digits(_bytes((values + 1) / 2, path), labels - 1, path.name)


def _wrong_line(path: Path, row: int, line: bytes) -> DataError:
    return DataError(
        f"got line {row + 1} of {path.name}: {line[:60]!r}; expected a label from 1 to 10 and rising index:value pairs "
        f"with indices 1 to {_PIXELS}. Download it again."
    )


def _bytes(values: NDArray[np.floating[Any]], path: Path) -> NDArray[np.uint8]:
    """Brightness in [0, 1], [n, 256], as pixels: floor(255 v), the rule that FedBN's USPS uses."""
    if not ((values >= 0) & (values <= 1)).all():  # NaN is neither
        raise DataError(
            f"got values from {values.min():g} to {values.max():g} in {path.name} (after scaling); expected values "
            "in [0, 1] and no NaN. Download it again."
        )
    pixels: NDArray[np.uint8] = np.floor(255 * values).astype(np.uint8)
    return pixels.reshape(-1, SIDE, SIDE)


def _read_hdf5(path: Path) -> RawDigits:
    try:
        h5py = importlib.import_module("h5py")
    except ImportError:
        raise DataError(
            f"got {path.name}, an HDF5 file; expected the package h5py, which reads it. Install it (pip install h5py), "
            "or use usps.bz2 and usps.t.bz2, which need no package."
        ) from None
    try:
        with h5py.File(path, "r") as file:
            train, test = (
                checked_digits(
                    _bytes(_dataset(file, f"{part}/data", (_PIXELS,), path).astype(np.float64), path),
                    _dataset(file, f"{part}/target", (), path),
                    path.name,
                )
                for part in ("train", "test")
            )
    except (OSError, KeyError, RuntimeError, TypeError, AttributeError) as error:  # what the HDF5 library raises
        raise broken(path.name, str(error)) from error
    return RawDigits(train, test, (file_source(path),))


def _dataset(file: Any, name: str, row: tuple[int, ...], path: Path) -> NDArray[Any]:
    """An array of numbers that is stored in this file: HDF5 can also point to other files."""
    dataset = file[name]
    own = dataset.file == file and dataset.external is None and not dataset.is_virtual
    if not own or dataset.dtype.kind not in "fiu" or dataset.shape[1:] != row or not 0 < dataset.shape[0] <= _MOST_ROWS:
        raise DataError(
            f"got {name} of {dataset.dtype} and shape {dataset.shape} in {path.name}; expected numbers of shape "
            f"{('n', *row)}, stored in the file itself. Download it again."
        )
    return np.asarray(dataset[()])
