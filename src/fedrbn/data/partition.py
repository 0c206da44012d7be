"""Which user gets which images of a domain: the number of images per user, and their classes."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Index = NDArray[np.int64]


def even_sizes(total: int, users: int) -> Index:
    """Numbers that sum to `total` and differ by at most one."""
    return np.full(users, total // users) + (np.arange(users) < total % users)


def dirichlet_sizes(total: int, users: int, concentration: float, least: int, rng: np.random.Generator) -> Index:
    """Dirichlet shares of `total` as whole numbers of at least `least`, which sum to it exactly.

    Shares that are too small are raised to `least`; the excess of the others over `least` shrinks in proportion.
    """
    spare = total - users * least
    above = np.maximum(rng.dirichlet(np.full(users, concentration)) * total - least, 0)
    if above.sum() > 0:
        above *= spare / above.sum()
    whole = np.floor(above).astype(np.int64)
    by_remainder = np.argsort(whole - above, kind="stable")
    whole[by_remainder[: spare - whole.sum()]] += 1
    return whole + least


def skewed_labels(labels: Index, sizes: Index, concentration: float, rng: np.random.Generator) -> list[Index]:
    """Positions for every user, of the given sizes, with classes drawn from the user's own Dirichlet mixture.

    Mixtures vary around the class proportions in `labels`. Users draw one image at a time, in random order, and take
    their next choice when a class is used up. So all images are assigned, and no user gets only the leftovers.
    """
    classes, counts = np.unique(labels, return_counts=True)
    mixtures = rng.dirichlet(concentration * len(classes) * counts / len(labels), size=len(sizes))
    turns = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    # Divide exponential variables by the probabilities: the smallest is a draw with these probabilities, and their
    # order is a draw without replacement. The tiny constant avoids a division by probabilities that underflowed to 0.
    race = rng.exponential(size=(len(turns), len(classes))) / (mixtures[turns] + 1e-300)
    piles = [rng.permutation(np.flatnonzero(labels == label)).tolist() for label in classes]
    given: list[list[int]] = [[] for _ in sizes]
    for user, wishes in zip(turns, np.argsort(race, axis=1), strict=True):
        given[user].append(next(piles[wish].pop() for wish in wishes if piles[wish]))
    return [np.array(rows, dtype=np.int64) for rows in given]


def held_out(count: int, share: float) -> int:
    """How many of `count` images are for validation: the share, rounded up so that a share above 0 gives at least 1."""
    return math.ceil(round(count * share, 9))


def least_count(train: int, validation: float) -> int:
    """The smallest number of images of which at least `train` remain after validation takes its share."""
    count = max(train, math.floor(train / (1 - validation)) - 1)
    while count - held_out(count, validation) < train:
        count += 1
    return count
