"""Convert published downloads into prepared files: plain NumPy archives, and a record of their source files.

Next to the archives is `checksums.json`. It lists for each archive its sha256, size and images per class, and the name,
size and sha256 of every source file.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrbn.data.official import OFFICIAL
from fedrbn.data.raw.files import RawDigits, RawPhotographs, Source
from fedrbn.data.raw.idx import read_mnist
from fedrbn.data.raw.mat import read_svhn
from fedrbn.data.raw.mnist_m import read_mnist_m
from fedrbn.data.raw.photographs import read_domainnet, read_office
from fedrbn.data.raw.usps import read_usps
from fedrbn.data.sets.folder import SPLIT_SEED, TEST_SHARE, decode, is_regular
from fedrbn.data.train_test import stratified
from fedrbn.errors import DataError
from fedrbn.files import MOST_TEXT, read_named

CHECKSUMS = "checksums.json"

_DIGITS: dict[str, Callable[[Path], RawDigits]] = {
    "mnist": read_mnist,
    "svhn": read_svhn,
    "usps": read_usps,
    "mnist_m": read_mnist_m,
}
_PHOTOGRAPHS: dict[str, Callable[[Path], list[RawPhotographs]]] = {
    "office-caltech10": read_office,
    "domainnet": read_domainnet,
}


@dataclass(frozen=True)
class Archive:
    """One prepared file, before it is written."""

    name: str
    arrays: dict[str, NDArray[Any]]
    counts: dict[str, dict[str, int]]
    """Images per class in each part."""
    sources: tuple[Source, ...]


def prepare(source: Path, kind: str, out: Path, *, force: bool = False) -> list[Path]:
    """Read the published files in `source` and write prepared ones below `out`, where FEDRBN_DATA should point."""
    if kind not in OFFICIAL:
        raise DataError(f"got --as {kind!r}; expected one of {', '.join(OFFICIAL)}.")
    if not source.exists():
        raise DataError(
            f"got source {source}, which does not exist; expected the folder with {', '.join(OFFICIAL[kind].files)}."
        )
    folder = out / OFFICIAL[kind].folder
    archives = _read(source, kind)
    if taken := [archive.name for archive in archives if (folder / archive.name).exists() and not force]:
        raise DataError(
            f"got {folder}, which already has {', '.join(taken)}; expected a folder without them. Choose another "
            "folder, or replace them with --force."
        )
    return [write(archive, folder) for archive in archives]


def _read(source: Path, kind: str) -> list[Archive]:
    if kind in _DIGITS:
        return [_digits(f"{kind}.npz", _DIGITS[kind](source))]
    return [_photographs(raw, has_parts=kind == "domainnet") for raw in _PHOTOGRAPHS[kind](source)]


def _digits(name: str, raw: RawDigits) -> Archive:
    parts = {"train": raw.train, "test": raw.test}
    digits = tuple("0123456789")
    return Archive(
        name,
        {
            f"{part}_{what}": array
            for part, pair in parts.items()
            for what, array in zip(("images", "labels"), pair, strict=True)
        },
        {part: _counts(labels, digits) for part, (_, labels) in parts.items()},
        raw.sources,
    )


def _photographs(raw: RawPhotographs, has_parts: bool) -> Archive:
    """The concatenated files of a domain; each is decoded once, to verify it."""
    for photo in raw.photographs:
        decode(photo.content, f"{raw.domain}/{photo.class_name}/{photo.file_name}", size=8)
    classes = sorted({photo.class_name for photo in raw.photographs})
    labels = np.array([classes.index(photo.class_name) for photo in raw.photographs], np.uint8)
    arrays: dict[str, NDArray[Any]] = {
        "jpeg_data": np.frombuffer(b"".join(photo.content for photo in raw.photographs), np.uint8),
        "offsets": np.cumsum([0, *(len(photo.content) for photo in raw.photographs)], dtype=np.int64),
        "labels": labels,
        "class_names": np.array(classes),
        "file_names": np.array([photo.file_name for photo in raw.photographs]),
    }
    if not has_parts:
        return Archive(f"{raw.domain}.npz", arrays, {"all": _counts(labels, classes)}, raw.sources)
    test = _test_part(raw, labels)
    counts = {"train": _counts(labels[~test], classes), "test": _counts(labels[test], classes)}
    return Archive(f"{raw.domain}.npz", arrays | {"test": test}, counts, raw.sources)


def _test_part(raw: RawPhotographs, labels: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """The published test part, or a fifth of each class if none is published."""
    if raw.photographs[0].test is not None:
        return np.array([photo.test for photo in raw.photographs], np.bool_)
    test = np.zeros(len(labels), np.bool_)
    test[stratified(labels, TEST_SHARE, SPLIT_SEED)[1]] = True
    return test


def _counts(labels: NDArray[np.uint8], classes: Sequence[str]) -> dict[str, int]:
    return dict(zip(classes, np.bincount(labels, minlength=len(classes)).tolist(), strict=True))


def write(archive: Archive, folder: Path) -> Path:
    """Write the archive into its folder, and its entry into checksums.json; both are replaced atomically."""
    folder.mkdir(parents=True, exist_ok=True)
    entries = read_checksums(folder)
    path = folder / archive.name
    _replace(path, lambda file: np.savez_compressed(file, **archive.arrays))  # type: ignore[arg-type]
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    entries[archive.name] = {
        "sha256": digest,
        "bytes": path.stat().st_size,
        "counts": archive.counts,
        "sources": [asdict(source) for source in archive.sources],
    }
    text = json.dumps(entries, indent=1, sort_keys=True) + "\n"
    _replace(folder / CHECKSUMS, lambda file: file.write(text.encode()))
    return path


def _replace(path: Path, fill: Callable[[Any], object]) -> None:
    """Write a temporary file and rename it: readers see the old file or the complete new one."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            fill(file)
        Path(name).chmod(0o644)  # mkstemp makes files that only their owner can read; prepared data are shared
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def read_checksums(folder: Path) -> dict[str, Any]:
    """The entries of checksums.json, by file; empty if it does not exist."""
    path = folder / CHECKSUMS
    if not path.exists():
        return {}
    try:
        entries = json.loads(read_named(path, MOST_TEXT))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"got {path}, which is not JSON ({error}); expected checksums. Remove the file.") from error
    if not isinstance(entries, dict) or not all(isinstance(entry, dict) for entry in entries.values()):
        raise DataError(f"got {path} , which is not a table of files; expected checksums. Remove the file.")
    return entries


def changed_files(folder: Path) -> list[str]:
    """The prepared files that are missing or do not match checksums.json."""
    changed = []
    for name, entry in sorted(read_checksums(folder).items()):
        path = folder / Path(name).name
        if not is_regular(path):
            changed.append(f"{name} is missing")
            continue
        with path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != entry.get("sha256"):
                changed.append(f"{name} does not have the sha256 in {CHECKSUMS}")
    return changed
