"""McNemar's exact test on per-sample outcomes."""

from __future__ import annotations

import pytest
import torch

from fedrbn.evaluation.significance import compare


def outcomes(*right: int, count: int = 10) -> torch.Tensor:
    """Samples of which those listed are right."""
    answer = torch.zeros(count, dtype=torch.bool)
    answer[list(right)] = True
    return answer


def test_exact_probability_by_hand() -> None:
    # Pooled over two clients only the first run is right on 6 samples, only the second on 1, both on 1.
    ours = {"a": {"ra": outcomes(0, 1, 2, 3)}, "b": {"ra": outcomes(0, 1, 2)}}
    theirs = {"a": {"ra": outcomes(0)}, "b": {"ra": outcomes(9)}}
    (result,) = compare(ours, theirs)
    assert (result.only_ours, result.only_theirs, result.samples) == (6, 1, 20)
    assert (result.ours, result.theirs) == (7 / 20, 2 / 20)
    # Two-sided binomial with 7 coin flips: 2 · (C(7,0) + C(7,1)) / 2⁷ = 2 · 8 / 128.
    assert result.p == pytest.approx(16 / 128)


def test_equal_runs_do_not_differ() -> None:
    run = {"a": {"sa": outcomes(1, 2), "ra": outcomes(1)}}
    assert [(c.column, c.p) for c in compare(run, run)] == [("ra", 1.0), ("sa", 1.0)]


def test_only_columns_of_both_are_compared() -> None:
    ours = {"a": {"sa": outcomes(1), "ra[aa]": outcomes(1)}}
    assert [c.column for c in compare(ours, {"a": {"sa": outcomes(1)}})] == ["sa"]


def test_other_clients_or_samples_are_refused() -> None:
    with pytest.raises(ValueError, match="same federation"):
        compare({"a": {"sa": outcomes(1)}}, {"b": {"sa": outcomes(1)}})
    with pytest.raises(ValueError, match="10 and 9 test samples of client 'a'"):
        compare({"a": {"sa": outcomes(1)}}, {"a": {"sa": outcomes(1, count=9)}})
