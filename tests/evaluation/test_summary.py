"""From booleans per sample to the numbers of a table."""

from __future__ import annotations

import pytest
import torch

from fedrbn.evaluation.summary import columns, interval, means, summary, validation_summary
from fedrbn.federated.protocol import Answers
from fedrbn.types import Member, Role


def bits(text: str) -> torch.Tensor:
    return torch.tensor([bit == "1" for bit in text], dtype=torch.bool)


MEMBERS = (
    Member("a-0", "a", Role.AT.duty, 10),
    Member("a-1", "a", Role.ST.duty, 10),
    Member("b-0", "b", Role.ST.duty, 1000),
)


def test_validation_is_ra_of_at_and_sa_of_st_users_in_the_mean_over_users() -> None:
    """a-0: ½; a-1: 1; b-0: ¼ of its four samples. Score (½ + 1 + ¼) / 3 = 7/12; SA of ST users (1 + ¼) / 2 = ⅝."""
    answers = [
        Answers("a-0", 1, {"pgd-7@noised": bits("10"), "clean@noised": bits("11")}),
        Answers("a-1", 1, {"clean@noised": bits("1")}),
        Answers("b-0", 1, {"clean@noised": bits("0100")}),
    ]
    keys = {"a-0": "pgd-7@noised", "a-1": "clean@noised", "b-0": "clean@noised"}
    found = validation_summary(answers, MEMBERS, keys)
    assert found == pytest.approx({"score": 7 / 12, "ra_at": 0.5, "sa_st": 0.625})


def test_validation_without_samples() -> None:
    assert validation_summary([], MEMBERS, {}) == {"score": None, "ra_at": None, "sa_st": None}
    nothing = [Answers("a-1", 1, {"clean@clean": bits("")}), Answers("b-0", 1, {"clean@clean": bits("1")})]
    keys = {"a-1": "clean@clean", "b-0": "clean@clean"}
    assert validation_summary(nothing, MEMBERS, keys) == {"score": 1.0, "ra_at": None, "sa_st": 1.0}


def test_columns_are_named_after_the_deployment_the_branch_and_the_attack() -> None:
    correct = {
        "clean@noised": bits("1"),
        "pgd-7@noised": bits("1"),
        "pgd-7@noised adaptive": bits("0"),
        "clean@clean": bits("1"),
        "pgd-7@clean": bits("0"),
        "mia:eps=16/255@noised": bits("0"),
        "clean for aa@noised": bits("1"),
        "aa@noised": bits("0"),
    }
    assert set(columns(correct, deployed="noised", main="pgd-7")) == {
        "sa",
        "ra",
        "ra adaptive",
        "sa@noised",
        "ra@noised",
        "ra@noised adaptive",
        "sa@clean",
        "ra@clean",
        "ra[mia:eps=16/255]",
        "ra[mia:eps=16/255]@noised",
        "sa[aa]",
        "sa[aa]@noised",
        "ra[aa]",
        "ra[aa]@noised",
    }
    found = columns(correct, deployed="clean", main="pgd-7")
    assert found["ra"] is correct["pgd-7@clean"]
    assert found["ra@noised"] is correct["pgd-7@noised"]
    assert "ra[aa]" not in found, "nobody attacked the deployed branch with it"


def test_a_rule_that_picks_the_branch_is_no_branch() -> None:
    assert set(columns({"clean@confident": bits("1")}, deployed="confident", main="pgd")) == {"sa"}


def test_means_leave_out_a_column_that_somebody_lacks() -> None:
    assert means([{"sa": 1.0, "sa@noised": 0.5}, {"sa": 0.5}]) == {"sa": 0.75}
    assert means([]) == {}


def test_summary_averages_users_not_samples() -> None:
    """SA: a-0 1, a-1 ½ (domain a ¾), b-0 ¼ of eight samples. Over users 7/12; over samples it would be 5/12.

    RA: a-0 0, a-1 ½ (domain a ¼), b-0 ⅛: over users 5/24, worst domain b.
    """
    answers = [
        Answers("a-0", 3, {"clean@noised": bits("11"), "pgd@noised": bits("00")}),
        Answers("a-1", 3, {"clean@noised": bits("10"), "pgd@noised": bits("10")}),
        Answers("b-0", 3, {"clean@clean": bits("11000000"), "pgd@clean": bits("10000000")}),
    ]
    found = summary(answers, MEMBERS, {"a-0": "noised", "a-1": "noised", "b-0": "clean"}, "pgd")
    assert found["users"]["b-0"] == {
        "domain": "b",
        "role": "ST",
        "predicts": "clean",
        "sa": 0.25,
        "sa@clean": 0.25,
        "ra": 0.125,
        "ra@clean": 0.125,
    }
    assert found["domains"]["a"] == {"sa": 0.75, "sa@noised": 0.75, "ra": 0.25, "ra@noised": 0.25}
    assert found["mean"] == pytest.approx({"sa": 7 / 12, "ra": 5 / 24})
    assert found["worst_domain"] == {"sa": 0.25, "ra": 0.125}
    assert found["samples"] == {"sa": 12, "ra": 12}
    low, high = found["interval"]["sa"]
    assert low < 7 / 12 < high


def test_a_branch_that_one_method_lacks_has_no_column() -> None:
    answers = [Answers(member.id, 1, {"clean@clean": bits("1")}) for member in MEMBERS]
    found = summary(answers, MEMBERS, dict.fromkeys(("a-0", "a-1", "b-0"), "clean"), "pgd")
    assert set(found["mean"]) == {"sa", "sa@clean"}


@pytest.mark.parametrize(
    ("mean", "samples", "expected"),
    [
        # z = 1.96, n = 100, p = ½: centre ½; half-width z / (1 + z²/n) · √(p(1−p)/n + z²/4n²) = 0.0962
        (0.5, 100, (0.4038, 0.5962)),
        # p = 0: [0, z² / (n + z²)] = [0, 3.8415 / 13.8415]
        (0.0, 10, (0.0, 0.2775)),
        (1.0, 10, (0.7225, 1.0)),
        (0.5, 0, (0.0, 1.0)),
    ],
)
def test_wilson_interval(mean: float, samples: int, expected: tuple[float, float]) -> None:
    assert interval(mean, samples) == pytest.approx(expected, abs=5e-5)
