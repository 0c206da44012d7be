"""Prepared data files: found through FEDRBN_DATA, plain NumPy archives without pickles, checked before use."""

from __future__ import annotations

import math
import os
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrbn.data.raw.files import MOST_BYTES
from fedrbn.errors import DataError
from fedrbn.files import open_named

VARIABLE = "FEDRBN_DATA"
_PREPARE = "Make it with fedrbn data prepare (fedrbn data prepare --where says what to download)"
_MOST_GROWTH = 4
"""A file may unpack to this many times its size, or to MOST_BYTES if that is more."""
_MOST_NAMED = 12
_HEADERS: Mapping[tuple[int, int], Callable[..., tuple[tuple[int, ...], bool, np.dtype[Any]]]] = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def prepared_folder(dataset: str, subfolder: str) -> Path:
    """The folder with this data set's files."""
    remedy = (
        f"{_PREPARE}, set {VARIABLE} to the folder that holds {subfolder}/, or use data.name = 'digits-mini', which "
        "needs none."
    )
    root = os.environ.get(VARIABLE)
    if not root:
        raise DataError(f"got no {VARIABLE} in the environment; expected it for data {dataset!r}. {remedy}")
    folder = Path(root).expanduser() / subfolder
    if not folder.is_dir():
        raise DataError(f"got {VARIABLE}={root}, which has no {subfolder}/; expected the folder {folder}. {remedy}")
    return folder


def read_archive(path: Path, names: tuple[str, ...]) -> dict[str, NDArray[Any]]:
    """These arrays of a .npz file."""
    if not path.is_file():
        raise DataError(
            f"got no file {path}; expected a .npz with {', '.join(names)}. {_PREPARE}, point {VARIABLE} elsewhere, or "
            "use data.name = 'digits-mini', which needs no files."
        )
    try:
        return read_arrays(path, names)
    except Exception as error:  # zipfile, zlib, tokenize and NumPy's parser raise different errors
        raise DataError(
            f"got {path}, which cannot be used: {error}; expected a .npz with {', '.join(names)} and no pickled "
            "objects. Prepare the file again."
        ) from error


def read_arrays(path: Path, names: tuple[str, ...]) -> dict[str, NDArray[Any]]:
    """These arrays of a .npz file, after checking that none of them claims more than the file holds."""
    with open_named(path) as file, zipfile.ZipFile(file) as archive:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        if missing := [name for name in names if name not in members]:
            raise DataError(f"it lacks {', '.join(missing)} and has {', '.join([*members][:_MOST_NAMED])}")
        unpacked = sum(members[name].file_size for name in names)
        # Prepared files hardly compress; a file that grows a thousandfold was made to exhaust memory.
        limit = max(MOST_BYTES, _MOST_GROWTH * path.stat().st_size)
        if unpacked > limit:
            raise DataError(f"its arrays unpack to {unpacked:,} bytes, more than {limit:,}")
        return {name: _array(archive, members[name]) for name in names}


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> NDArray[Any]:
    """One array. NumPy allocates what the header claims, so the claim is first compared with the member's size."""
    with archive.open(member) as stream:
        read_header = _HEADERS.get(np.lib.format.read_magic(stream))
        if read_header is None:
            raise DataError(f"{member.filename} has an unknown version")
        shape, _, dtype = read_header(stream)
        claimed, held = math.prod(shape) * dtype.itemsize, member.file_size - stream.tell()
        if dtype.hasobject or dtype.itemsize == 0 or min(shape, default=1) < 0 or claimed != held:
            raise DataError(f"{member.filename} claims {dtype} of shape {shape}, but holds {held:,} bytes")
    with archive.open(member) as stream:
        array: NDArray[Any] = np.lib.format.read_array(stream, allow_pickle=False)
        return array
