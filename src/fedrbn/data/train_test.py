"""Split labelled images into train and test parts."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedrbn.data.partition import Index


def stratified(labels: NDArray[np.integer], test: float, seed: int) -> tuple[Index, Index]:
    """Positions of the train and the test part, with every class split in the same proportion; seeded, shuffled.

    Every class keeps at least one training image, and a class of two or more has at least one test image.
    """
    rng = np.random.default_rng(seed)
    train_parts, test_parts = [], []
    for label in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == label))
        held_out = min(max(round(test * len(rows)), 1), len(rows) - 1)
        test_parts.append(rows[:held_out])
        train_parts.append(rows[held_out:])
    return rng.permutation(np.concatenate(train_parts)), rng.permutation(np.concatenate(test_parts))
