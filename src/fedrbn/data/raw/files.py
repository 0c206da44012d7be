"""Read raw files up to a size limit; the types that every reader returns."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
from numpy.typing import NDArray

from fedrbn.errors import DataError
from fedrbn.files import open_named

MEGABYTE = 2**20
MOST_BYTES = 1024 * MEGABYTE
"""Largest decompressed size of a file: a small file can unpack to terabytes."""
MOST_IMAGE_BYTES = 64 * MEGABYTE
"""Largest size of one JPEG or PNG file."""


@dataclass(frozen=True)
class Source:
    """The source of prepared data: one file, or all files that were read from a folder."""

    name: str
    files: int
    bytes: int
    sha256: str


@dataclass(frozen=True)
class RawDigits:
    """The train and the test part of a set of digits: uint8 pixels [n, h, w] or [n, h, w, 3], labels 0 to 9."""

    train: tuple[NDArray[np.uint8], NDArray[np.uint8]]
    test: tuple[NDArray[np.uint8], NDArray[np.uint8]]
    sources: tuple[Source, ...]


@dataclass(frozen=True)
class Photograph:
    """One image file as published: its content, the name of its class, and its part if there is one."""

    content: bytes
    class_name: str
    file_name: str
    test: bool | None


@dataclass(frozen=True)
class RawPhotographs:
    """The image files of one domain."""

    domain: str
    photographs: tuple[Photograph, ...]
    sources: tuple[Source, ...]


def read_bounded(stream: IO[bytes], limit: int, name: str) -> bytes:
    """The rest of a stream; refused if it is more than `limit` bytes."""
    content = stream.read(limit + 1)
    if len(content) > limit:
        raise DataError(
            f"got {name}, which holds more than {limit:,} bytes; expected at most this size. It is not the "
            "published file: download it again."
        )
    return content


def content_of(path: Path, limit: int = MOST_BYTES) -> bytes:
    """A file's content, decompressed if its first bytes say gzip or bzip2; its name does not matter."""
    try:
        with open_named(path) as file:
            start = file.read(3)
            file.seek(0)
            return read_bounded(_decompressed(file, start), limit, path.name)
    except (OSError, EOFError, zlib.error) as error:
        raise broken(path.name, str(error)) from error


def _decompressed(file: IO[bytes], start: bytes) -> IO[bytes]:
    if start.startswith(b"\x1f\x8b"):
        return cast(IO[bytes], gzip.GzipFile(fileobj=file))
    return cast(IO[bytes], bz2.BZ2File(file)) if start == b"BZh" else file


def broken(name: str, why: str) -> DataError:
    """The error for a file that cannot be read."""
    return DataError(f"got {name}, which cannot be read ({why}); expected a complete file. Download it again.")


def find(folder: Path, *names: str) -> Path:
    """The first of these files that is in the folder."""
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise DataError(
        f"got {folder} without {' or '.join(names)}; expected the published files. `fedrbn data prepare --where` "
        "says what to download."
    )


def image_content(path: Path) -> bytes:
    """The content of a JPEG or PNG file."""
    try:
        with open_named(path) as file:
            return read_bounded(file, MOST_IMAGE_BYTES, path.name)
    except FileNotFoundError:
        raise DataError(
            f"got no file {path.parent.name}/{path.name}; expected it, because it is listed. Unpack the archive again."
        ) from None
    except OSError as error:
        raise broken(path.name, str(error)) from error


def file_source(path: Path) -> Source:
    """Size and checksum of a file."""
    try:
        with open_named(path) as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise broken(path.name, str(error)) from error
    return Source(path.name, 1, path.stat().st_size, digest)


def folder_source(name: str, contents: Iterable[bytes]) -> Source:
    """One checksum over many files, in the order they were read."""
    digest, files, size = hashlib.sha256(), 0, 0
    for content in contents:
        digest.update(content)
        files, size = files + 1, size + len(content)
    return Source(f"{name}/", files, size, digest.hexdigest())


def checked_digits(
    images: NDArray[np.uint8], labels: Sequence[int] | NDArray[Any], name: str
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Check that there is one label per image and that every label is a digit."""
    numbers = np.asarray(labels)
    if not len(images) or numbers.shape != (len(images),):
        raise DataError(
            f"got {len(images):,} images and {numbers.size:,} labels in {name}; expected one label for each of at "
            "least one image. Take both from the same download."
        )
    if not ((numbers >= 0) & (numbers <= 9) & (numbers == np.floor(numbers))).all():
        raise DataError(
            f"got labels {np.unique(numbers)[:12]} in {name}; expected the digits 0 to 9. Download it again."
        )
    return images, numbers.astype(np.uint8)
