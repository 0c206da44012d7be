"""Check data before training: sizes, class balance, broken files, and leaks from train to test."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedrbn import data
from fedrbn.builtin.data_sets import folder_named
from fedrbn.data.duplicates import Fingerprints, fingerprints, joined, matches
from fedrbn.data.federation import pooled
from fedrbn.data.imaging import to_channels_first
from fedrbn.data.official import OFFICIAL
from fedrbn.data.prepare import changed_files
from fedrbn.data.prepared import prepared_folder
from fedrbn.data.samples import LEAST_CLASSES, DataSet, Federation, Samples
from fedrbn.data.sets.folder import SPLIT_SEED, TEST_SHARE, decode, ignored_files, image_files, parts_of, subfolders
from fedrbn.data.train_test import stratified


@dataclass(frozen=True)
class DomainReport:
    """One domain: images per class in each part, widths and heights, and classes without images."""

    name: str
    train: dict[str, int]
    test: dict[str, int]
    widths: tuple[int, float, int]
    """Smallest, median, largest."""
    heights: tuple[int, float, int]
    missing: tuple[str, ...]


@dataclass(frozen=True)
class Pair:
    """A test image and the training image it repeats."""

    train: str
    test: str
    difference: float
    """0 if all pixels are equal, else the difference as a fraction of the contrast."""


@dataclass(frozen=True)
class Report:
    """The result of the whole check."""

    name: str
    classes: tuple[str, ...]
    domains: tuple[DomainReport, ...]
    broken: tuple[str, ...]
    """Files that cannot be used, each with the reason."""
    exact: tuple[Pair, ...]
    near: tuple[Pair, ...]
    ignored: tuple[str, ...] = ()
    """Files that are not read as images, each with the reason."""

    @property
    def filled(self) -> tuple[str, ...]:
        """The classes that have a training image in some domain."""
        return tuple(label for label in self.classes if any(domain.train[label] for domain in self.domains))

    @property
    def passed(self) -> bool:
        """Whether there are two classes, no broken file, and no test image that is also a training image.

        Near duplicates and ignored files do not fail the check: a person has to judge them.
        """
        return len(self.filled) >= LEAST_CLASSES and not self.broken and not self.exact


@dataclass(frozen=True)
class _Part:
    """Images of one part of a domain, as far as they could be read."""

    names: list[str]
    labels: NDArray[np.int64]
    sizes: NDArray[np.int64]
    """Width and height, [n, 2]."""
    prints: Fingerprints

    def take(self, index: NDArray[np.int64]) -> _Part:
        names = [self.names[i] for i in index]
        return _Part(names, self.labels[index], self.sizes[index], self.prints.take(index))


def check(name: str) -> Report:
    """Check an image folder file by file, or any other data as `data.load` returns them."""
    folder = folder_named(name)
    if folder is not None:
        return check_folder(folder)
    loaded = data.load(name)
    broken: tuple[str, ...] = ()
    if name in data.AVAILABLE and data.AVAILABLE[name].needs_files:
        broken = tuple(changed_files(prepared_folder(name, _subfolder(name))))
    return check_samples(pooled(loaded, name) if isinstance(loaded, Federation) else loaded, broken)


def _subfolder(name: str) -> str:
    return OFFICIAL[name].folder if name in OFFICIAL else name


def check_folder(root: Path) -> Report:
    """Check every image below `root`; images that cannot be decoded are listed and left out of the other checks."""
    folders = parts_of(root)
    classes = tuple(sorted({path.name for parts in folders.values() for part in parts for path in subfolders(part)}))
    broken: list[str] = []
    domains: dict[str, tuple[_Part, _Part]] = {}
    for domain, places in folders.items():
        parts = [_scan(root, place, classes, broken) for place in places]
        domains[domain.name] = (parts[0], parts[1]) if len(parts) > 1 else _split(parts[0])
    ignored = tuple(f"{name}: {reason}" for name, reason in ignored_files(root, folders))
    return replace(_report(root.resolve().name, classes, domains, tuple(broken)), ignored=ignored)


def check_samples(dataset: DataSet, broken: tuple[str, ...] = ()) -> Report:
    """Check data in memory, at their current size."""
    domains = {
        domain.name: (_loaded(domain.train, f"{domain.name} train"), _loaded(domain.test, f"{domain.name} test"))
        for domain in dataset.domains
    }
    return _report(dataset.name, dataset.classes, domains, broken)


def _scan(root: Path, folder: Path, classes: tuple[str, ...], broken: list[str]) -> _Part:
    names, labels, sizes, prints = [], [], [], []
    for label, class_name in enumerate(classes):
        for path in image_files(folder / class_name) if (folder / class_name).is_dir() else []:
            name = path.relative_to(root).as_posix()
            try:
                image = decode(path, name, None)
            except ValueError as error:
                broken.append(str(error))
                continue
            names.append(name)
            labels.append(label)
            sizes.append((image.shape[1], image.shape[0]))
            prints.append(fingerprints(to_channels_first(image[None])))
    return _Part(names, np.array(labels, np.int64), np.array(sizes, np.int64).reshape(-1, 2), joined(prints))


def _split(part: _Part) -> tuple[_Part, _Part]:
    """The train and test parts that `image_folder` would make from these images."""
    if not part.names:
        return part, part
    train, test = stratified(part.labels, TEST_SHARE, SPLIT_SEED)
    return part.take(train), part.take(test)


def _loaded(samples: Samples, name: str) -> _Part:
    height, width = samples.images.shape[2:]
    return _Part(
        [f"{name} {row}" for row in range(len(samples))],
        samples.labels.numpy(),
        np.tile(np.array([width, height], np.int64), (len(samples), 1)),
        fingerprints(samples.images),
    )


def _report(
    name: str, classes: tuple[str, ...], domains: dict[str, tuple[_Part, _Part]], broken: tuple[str, ...]
) -> Report:
    train, test = ([parts[i] for parts in domains.values()] for i in (0, 1))
    # Also across domains, because they train one network together.
    train_names, test_names = ([name_ for part in parts for name_ in part.names] for parts in (train, test))
    pairs = [
        Pair(train_names[match.train], test_names[match.test], match.difference)
        for match in matches(joined([part.prints for part in train]), joined([part.prints for part in test]))
    ]
    return Report(
        name,
        classes,
        tuple(_domain_report(domain, classes, *parts) for domain, parts in domains.items()),
        broken,
        exact=tuple(pair for pair in pairs if pair.difference == 0),
        near=tuple(pair for pair in pairs if pair.difference > 0),
    )


def _domain_report(name: str, classes: tuple[str, ...], train: _Part, test: _Part) -> DomainReport:
    in_train, in_test = (
        dict(zip(classes, np.bincount(part.labels, minlength=len(classes)).tolist(), strict=True))
        for part in (train, test)
    )
    sizes = np.concatenate([train.sizes, test.sizes])
    widths, heights = (
        (int(side.min()), float(np.median(side)), int(side.max())) if len(side) else (0, 0.0, 0) for side in sizes.T
    )
    missing = tuple(label for label in classes if in_train[label] + in_test[label] == 0)
    return DomainReport(name, in_train, in_test, widths, heights, missing)
