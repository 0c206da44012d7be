"""A disk cache for generated images: optional, verified on reading, and safe for several processes at once."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from fedrbn.data.prepared import read_arrays
from fedrbn.data.samples import Samples

TrainAndTest = tuple[Samples, Samples]
"""The train and the test part of a domain."""


@dataclass(frozen=True)
class Expected:
    """What cached parts must look like to be used."""

    train: int
    test: int
    shape: tuple[int, int, int]
    """Channels, height, width."""
    classes: int

    def fits(self, samples: Samples, count: int) -> bool:
        """Whether these samples have the expected number, shape and range of labels."""
        labels = samples.labels
        in_range = not len(labels) or (int(labels.min()) >= 0 and int(labels.max()) < self.classes)
        return tuple(samples.images.shape) == (count, *self.shape) and in_range


def cache_folder() -> Path:
    """$FEDRBN_CACHE, else $XDG_CACHE_HOME/fedrbn, else ~/.cache/fedrbn."""
    if own := os.environ.get("FEDRBN_CACHE"):
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path("~/.cache").expanduser()) / "fedrbn"


def cached(key: str, expected: Expected, make: Callable[[], TrainAndTest]) -> TrainAndTest:
    """The parts stored under this key, or newly generated ones, which are then stored if the folder is writable."""
    path = cache_folder() / f"{key}.npz"
    stored = _read(path, expected)
    if stored is not None:
        return stored
    parts = make()
    with contextlib.suppress(OSError):
        _write(path, parts)
    return parts


def _read(path: Path, expected: Expected) -> TrainAndTest | None:
    """The stored parts, or None if there are none or they are not as expected."""
    try:
        archive = read_arrays(path, ("train_images", "train_labels", "test_images", "test_labels"))
        train, test = (
            Samples(torch.from_numpy(archive[f"{part}_images"]), torch.from_numpy(archive[f"{part}_labels"]))
            for part in ("train", "test")
        )
    except Exception:  # for any error of a missing, truncated or foreign file: generate it again
        return None
    return (train, test) if expected.fits(train, expected.train) and expected.fits(test, expected.test) else None


def _write(path: Path, parts: TrainAndTest) -> None:
    """Write a temporary file and rename it: readers see the complete file or none."""
    train, test = parts
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            np.savez(
                file,
                train_images=train.images.numpy(),
                train_labels=train.labels.numpy(),
                test_images=test.images.numpy(),
                test_labels=test.labels.numpy(),
            )
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
