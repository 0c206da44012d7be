from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedrbn.data.train_test import stratified


def test_every_class_is_split_in_the_same_proportion() -> None:
    labels = np.array([0] * 10 + [1] * 20 + [2] * 5)
    train, test = stratified(labels, test=0.2, seed=0)
    assert np.bincount(labels[test]).tolist() == [2, 4, 1]
    assert np.bincount(labels[train]).tolist() == [8, 16, 4]


def test_a_class_of_one_is_trained_on_and_a_class_of_two_is_tested_too() -> None:
    train, test = stratified(np.array([0, 1, 1]), test=0.2, seed=0)
    assert 0 in train
    assert len(test) == 1
    assert test[0] in (1, 2)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=60), st.floats(0.05, 0.9), st.integers(0, 1000))
def test_parts_are_disjoint_exhaustive_and_reproducible(labels: list[int], share: float, seed: int) -> None:
    train, test = stratified(np.array(labels), share, seed)
    assert sorted([*train, *test]) == list(range(len(labels)))
    assert set(labels) == {labels[i] for i in train}
    again = stratified(np.array(labels), share, seed)
    assert (train.tolist(), test.tolist()) == (again[0].tolist(), again[1].tolist())


def test_parts_are_shuffled_and_depend_on_the_seed() -> None:
    labels = np.repeat([0, 1], 50)
    train, _ = stratified(labels, 0.2, seed=0)
    assert train.tolist() != sorted(train.tolist())
    assert train.tolist() != stratified(labels, 0.2, seed=1)[0].tolist()
