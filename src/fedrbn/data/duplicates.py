"""Images that are in the training and in the test part: equal in every pixel, or nearly so.

Near duplicates are found in two steps. A 64-bit difference hash (dHash) says for an 8 x 9 thumbnail whether each pixel
is brighter than its left neighbour; two images whose hashes differ in few bits are candidates. Simple drawings can have
equal hashes without being copies (such as thin digits 1), so candidates must also agree as 16 x 16 thumbnails.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

MOST_BITS = 4
"""Candidates differ in at most this many of the 64 bits."""
MOST_DIFFERENCE = 0.05
"""Near duplicates differ by at most this fraction of their contrast. Measured on real data: of photographs in
Office-Caltech10 it finds every copy saved at JPEG quality 50 and four of five at half the size. It reports no pair of
digits of MNIST, SVHN, USPS or MNIST-M as copies; at 0.08 it would report 48 pairs of USPS."""

_THUMBNAIL = 16
_FLAT = 16.0
"""Added to the contrast, so that noise on flat images has little effect."""
_BLOCK = 4_000_000
_CANDIDATES = 20_000
_BATCH = 2048


@dataclass(frozen=True)
class Fingerprints:
    """The compared features of n images: digests of their pixels, hashes uint64 [n], thumbnails float32 [n, 256]."""

    digests: list[bytes]
    hashes: NDArray[np.uint64]
    thumbnails: Tensor

    def __len__(self) -> int:
        return len(self.digests)

    def take(self, index: NDArray[np.int64]) -> Fingerprints:
        """Those at these positions, in this order."""
        return Fingerprints([self.digests[i] for i in index], self.hashes[index], self.thumbnails[index])


@dataclass(frozen=True)
class Match:
    """A test image and its most similar training image; a difference of 0 means that all pixels are equal."""

    train: int
    test: int
    difference: float


def fingerprints(images: Tensor) -> Fingerprints:
    """The fingerprints of uint8 images [n, channels, height, width], computed in batches to limit memory."""
    return joined([_batch(images[start : start + _BATCH]) for start in range(0, len(images), _BATCH)])


def joined(parts: list[Fingerprints]) -> Fingerprints:
    """The fingerprints of all parts, concatenated."""
    if not parts:
        return Fingerprints([], np.empty(0, np.uint64), torch.empty(0, _THUMBNAIL**2))
    return Fingerprints(
        [digest for part in parts for digest in part.digests],
        np.concatenate([part.hashes for part in parts]),
        torch.cat([part.thumbnails for part in parts]),
    )


def _batch(images: Tensor) -> Fingerprints:
    shape = str(tuple(images.shape[1:])).encode()
    digests = [hashlib.blake2b(shape + image.tobytes(), digest_size=16).digest() for image in images.numpy()]
    grey = images.to(torch.float32).mean(dim=1, keepdim=True)
    small = F.interpolate(grey, size=(8, 9), mode="area")[:, 0]
    bits = (small[:, :, 1:] > small[:, :, :-1]).flatten(1).numpy()
    hashes = np.packbits(bits, axis=1).view(np.uint64)[:, 0]
    return Fingerprints(digests, hashes, F.interpolate(grey, size=_THUMBNAIL, mode="area").flatten(1))


def matches(train: Fingerprints, test: Fingerprints) -> list[Match]:
    """For every test image with a duplicate in the training part, the closest one."""
    first = {digest: row for row, digest in reversed(list(enumerate(train.digests)))}
    found = {row: Match(first[d], row, 0.0) for row, d in enumerate(test.digests) if d in first}
    for train_rows, test_rows in _candidates(train.hashes, test.hashes):
        differences = _differences(train.thumbnails[train_rows], test.thumbnails[test_rows]).numpy()
        for i in np.flatnonzero(differences <= MOST_DIFFERENCE):
            # A tiny minimum: only equal pixels, which have already been found, may have a difference of 0.
            match = Match(int(train_rows[i]), int(test_rows[i]), max(float(differences[i]), 1e-6))
            if match.test not in found or match.difference < found[match.test].difference:
                found[match.test] = match
    return [found[row] for row in sorted(found)]


def _candidates(
    train: NDArray[np.uint64], test: NDArray[np.uint64]
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Pairs of rows with similar hashes; all pairs are compared block by block, and yielded in portions."""
    rows = max(1, _BLOCK // max(1, len(train)))
    for start in range(0, len(test), rows):
        bits = np.bitwise_count(test[start : start + rows, None] ^ train[None])
        test_rows, train_rows = np.nonzero(bits <= MOST_BITS)
        for portion in range(0, len(test_rows), _CANDIDATES):
            chosen = slice(portion, portion + _CANDIDATES)
            yield train_rows[chosen], test_rows[chosen] + start


def _differences(one: Tensor, other: Tensor) -> Tensor:
    """The distance of two thumbnails as a fraction of the larger contrast of the two."""
    contrast = torch.maximum(_contrast(one), _contrast(other))
    return (one - other).square().sum(dim=1).sqrt() / (contrast + _FLAT)


def _contrast(thumbnails: Tensor) -> Tensor:
    return (thumbnails - thumbnails.mean(1, keepdim=True)).square().sum(dim=1).sqrt()
