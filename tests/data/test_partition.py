from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedrbn.data.partition import dirichlet_sizes, even_sizes, held_out, least_count, skewed_labels

seeds = st.integers(0, 2**32)
concentrations = st.floats(0.01, 100)


def test_even_sizes_spread_the_remainder() -> None:
    assert even_sizes(11, 4).tolist() == [3, 3, 3, 2]


@given(st.integers(0, 10_000), st.integers(1, 60))
def test_even_sizes_sum_up_and_differ_by_at_most_one(total: int, users: int) -> None:
    sizes = even_sizes(total, users)
    assert sizes.sum() == total
    assert sizes.max() - sizes.min() <= 1


@given(st.integers(1, 40), st.integers(0, 30), st.integers(0, 3000), concentrations, seeds)
def test_dirichlet_sizes_sum_up_and_respect_the_minimum(
    users: int, least: int, spare: int, concentration: float, seed: int
) -> None:
    total = users * least + spare
    sizes = dirichlet_sizes(total, users, concentration, least, np.random.default_rng(seed))
    assert sizes.sum() == total
    assert sizes.min() >= least
    again = dirichlet_sizes(total, users, concentration, least, np.random.default_rng(seed))
    assert sizes.tolist() == again.tolist()


class _Drawn(np.random.Generator):
    """A generator whose Dirichlet draw is known."""

    def dirichlet(self, alpha: object, size: object = None) -> np.ndarray:
        return np.array([0.02, 0.28, 0.70])


def test_dirichlet_sizes_are_repaired_in_proportion() -> None:
    # Shares of 100: 2, 28, 70. Above the minimum of 10: 0, 18, 60, in all 78, but only 100 - 3 * 10 = 70 are spare:
    # 18 * 70 / 78 = 16.15, 60 * 70 / 78 = 53.85. Whole: 16 and 53, the one left over goes to the larger remainder, .85.
    sizes = dirichlet_sizes(100, 3, 1.0, 10, _Drawn(np.random.PCG64(0)))
    assert sizes.tolist() == [10, 10 + 16, 10 + 54]


def test_large_concentration_is_nearly_even_and_small_is_not() -> None:
    rng = np.random.default_rng(0)
    assert np.ptp(dirichlet_sizes(1000, 10, 1e6, 4, rng)) < 10
    assert np.ptp(dirichlet_sizes(1000, 10, 0.1, 4, rng)) > 300


@given(st.lists(st.integers(0, 30), min_size=1, max_size=8), st.integers(1, 5), concentrations, seeds)
def test_skewed_labels_give_out_every_image_once(
    sizes: list[int], classes: int, concentration: float, seed: int
) -> None:
    labels = np.random.default_rng(seed).integers(classes, size=max(sum(sizes), 1))
    sizes[0] += len(labels) - sum(sizes)
    parts = skewed_labels(labels, np.array(sizes), concentration, np.random.default_rng(seed))
    assert [len(part) for part in parts] == sizes
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(labels)))
    again = skewed_labels(labels, np.array(sizes), concentration, np.random.default_rng(seed))
    assert all(a.tolist() == b.tolist() for a, b in zip(parts, again, strict=True))


def test_skew_follows_the_concentration() -> None:
    labels, sizes = np.arange(2000) % 10, np.full(10, 200)

    def largest_share(concentration: float) -> float:
        parts = skewed_labels(labels, sizes, concentration, np.random.default_rng(3))
        return float(np.mean([np.bincount(labels[part]).max() / len(part) for part in parts]))

    # Even mixes have a largest share a little above 1/10. One wanted class per user would give less than 1, because
    # users who want the same class share its 200 images and fall back on others: with ten users and ten classes about
    # 10 * (1 - 0.9^10) = 6.5 classes are wanted by somebody, so users get about 0.65 of what they want.
    assert largest_share(1000) < 0.16
    assert 0.2 < largest_share(0.5) < 0.4
    assert 0.4 < largest_share(0.001) < 0.9


@pytest.mark.parametrize(
    ("count", "share", "expected"),
    [(219, 0.5, 110), (218, 0.5, 109), (10, 0.0, 0), (3, 0.01, 1), (30, 0.1, 3)],  # 30 * 0.1 is 3.0000000000000004
)
def test_validation_is_rounded_up(count: int, share: float, expected: int) -> None:
    assert held_out(count, share) == expected


@given(st.integers(2, 200), st.floats(0, 0.95))
def test_least_count_is_the_fewest_that_suffices(train: int, validation: float) -> None:
    count = least_count(train, validation)
    assert count - held_out(count, validation) >= train
    assert count - 1 - held_out(count - 1, validation) < train
