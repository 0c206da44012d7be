"""Distances between branches by hand; who is flagged."""

from __future__ import annotations

import math

import pytest
import torch

from fedrbn.federated.donors import BN_EPSILON
from fedrbn.flower.claim_checks import branch_distance, suspicions
from fedrbn.nets.state import BNNames
from fedrbn.types import Branch, Tensors

LAYERS = tuple(
    BNNames("bn", branch, f"{branch.value}.mean", f"{branch.value}.var", f"{branch.value}.count", ())
    for branch in Branch
)


def client(mean: float, variance: float, count: int = 5) -> Tensors:
    """BN_c has mean (1, 1) and variance (4, 4), but for what batch norm adds; BN_a has its mean moved by (m, 0)."""
    return {
        "clean.mean": torch.tensor([1.0, 1.0]),
        "clean.var": torch.tensor([4.0, 4.0]) - BN_EPSILON,
        "clean.count": torch.tensor(5),
        "noised.mean": torch.tensor([1.0 + mean, 1.0]),
        "noised.var": torch.tensor([variance, variance]) - BN_EPSILON,
        "noised.count": torch.tensor(count),
    }


def test_distance_by_hand() -> None:
    """Means: (6/2, 0), root mean square √(9/2). Variances: ln(4e/4) = 1 twice, so 1. Their mean: (√4.5 + 1) / 2."""
    assert branch_distance(client(6.0, 4 * math.e), LAYERS) == pytest.approx((math.sqrt(4.5) + 1) / 2, rel=1e-5)
    assert branch_distance(client(0.0, 4.0), LAYERS) == 0


def test_the_one_whose_branches_are_the_same_is_flagged() -> None:
    personal = {"a": client(1.0, 4.0), "b": client(1.2, 4.0), "lazy": client(0.01, 4.0), "c": client(0.9, 4.0)}
    assert list(suspicions(personal, list(personal), LAYERS)) == ["lazy"]
    close = personal | {"lazy": client(0.3, 4.0)}  # 0.3 is not below a quarter of 1.0, the median of the others
    assert suspicions(close, list(close), LAYERS) == {}


def test_a_branch_that_never_saw_a_batch_is_flagged_also_when_alone() -> None:
    found = suspicions({"a": client(9.0, 4.0, count=0)}, ["a"], LAYERS)
    assert "never seen a batch" in found["a"]
    assert suspicions({"a": client(0.0, 4.0)}, ["a"], LAYERS) == {}, "nobody to compare with"


def test_methods_without_two_branches_of_their_own_flag_nobody() -> None:
    shared_statistics: Tensors = {"clean.count": torch.tensor(1)}
    assert suspicions({"a": shared_statistics}, ["a"], LAYERS) == {}
    assert suspicions({"a": client(0.0, 4.0)}, ["a"], LAYERS[:1]) == {}
    assert suspicions({}, [], LAYERS) == {}
