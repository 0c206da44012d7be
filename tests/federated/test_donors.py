"""Bounded influence in Eq. 3: capped weights, robust combination, plausible statistics."""

from __future__ import annotations

import pytest
import torch

from fedrbn.config import ConfigError
from fedrbn.federated.donors import Combine, Guard, capped, deviation
from fedrbn.federated.propagation import Propagation, Weighting, propagate
from fedrbn.nets.state import BNNames
from fedrbn.types import Branch, Tensors


def rows(*values: list[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize(
    ("alpha", "cap", "expected"),
    [
        ([0.9, 0.06, 0.04], 0.5, [0.5, 0.3, 0.2]),  # the rest of 0.5 in the proportion 6 : 4
        ([0.9, 0.09, 0.01], 0.4, [0.4, 0.4, 0.2]),  # 0.6 as 9 : 1 would be 0.54, above the cap; 0.2 is left
        ([0.5, 0.3, 0.2], 0.5, [0.5, 0.3, 0.2]),  # nobody above: nothing changes
        ([1.0, 0.0, 0.0], 0.5, [0.5, 0.25, 0.25]),  # others without any weight share evenly
        ([0.7, 0.2, 0.1], 0.2, [1 / 3, 1 / 3, 1 / 3]),  # three donors cannot stay below a fifth each
        ([1.0], 0.3, [1.0]),
    ],
)
def test_capped_weights(alpha: list[float], cap: float, expected: list[float]) -> None:
    assert capped(rows(alpha), cap)[0].tolist() == pytest.approx(expected)


def test_rows_are_capped_each_by_itself_and_sum_to_one() -> None:
    alpha = torch.softmax(
        torch.randn(20, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 8, dim=1
    )
    found = capped(alpha, 0.25)
    torch.testing.assert_close(found.sum(1), torch.ones(20, dtype=torch.float64))
    assert alpha.max() > 0.9
    assert found.max() <= 0.25 + 1e-9
    assert torch.equal(found.argmin(1), alpha.argmin(1)), "the order stays"


def test_a_median_is_moved_by_a_donor_only_if_it_has_half_of_the_weight() -> None:
    donated = rows([1.0, 10.0], [2.0, 30.0], [1e6, 20.0])
    guard = Guard(combine=Combine.MEDIAN)
    assert guard.combined(rows([0.3, 0.3, 0.4]), donated)[0].tolist() == [2.0, 20.0]
    assert guard.combined(rows([0.2, 0.2, 0.6]), donated)[0].tolist() == [1e6, 20.0]
    # Trimmed by a quarter at either end, weights ⅓: of 1, 2, 1e6 stay 1/12, 4/12, 1/12 of the weight.
    trimmed = Guard(combine=Combine.TRIMMED).combined(rows([1 / 3, 1 / 3, 1 / 3]), donated)[0]
    assert trimmed.tolist() == pytest.approx([(1 + 4 * 2 + 1e6) / 6, (10 + 4 * 20 + 30) / 6])


NAMES = tuple(
    BNNames("a", branch, f"{branch.value}.mean", f"{branch.value}.var", f"{branch.value}.count", ())
    for branch in (Branch.CLEAN, Branch.NOISED)
)


def client(mean: float, variance: float, clean: tuple[float, float] = (0.0, 1.0)) -> Tensors:
    """Two channels that are alike."""
    return {
        "clean.mean": torch.full((2,), clean[0]),
        "clean.var": torch.full((2,), clean[1]),
        "noised.mean": torch.full((2,), mean),
        "noised.var": torch.full((2,), variance),
    }


PERSONAL = {
    "k": client(0.0, 1.0, clean=(0.0, 1.0)),
    "p": client(1.0, 1.0),
    "q": client(2.0, 1.0),
    "r": client(3.0, 1.0),
}


def odd(**donors: Tensors) -> list[float]:
    return deviation({**PERSONAL, **donors}, "k", ["p", "q", "r", *donors], NAMES).tolist()  # type: ignore[no-any-return]


def test_oddity_is_the_distance_over_that_of_the_middle_voter() -> None:
    """Voters' means 0 (k's BN_c), 1, 2, 3 and 14, variances 1 (+ 1e-5): the centre is 2, σ° = 1.

    Distances 2, 1, 0, 1, 12; the middle one is 1.
    """
    assert odd(m=client(14.0, 1.0)) == pytest.approx([1.0, 0.0, 1.0, 12.0], abs=1e-3)


@pytest.mark.parametrize("variance", [403.428793, 1 / 403.428793])
def test_oddity_by_the_logarithm_of_the_variance(variance: float) -> None:
    """Mean 2 as the centre, variance e⁶ or e⁻⁶: the distance is 6 (up to ε₀ = 1e-5), the middle one 1."""
    assert odd(m=client(2.0, variance))[-1] == pytest.approx(6.0, abs=0.01)


@pytest.mark.parametrize(
    "wrong", [client(float("nan"), 1.0), client(0.0, float("inf")), client(2.0, 0.0), client(2.0, -1.0)]
)
def test_what_is_not_finite_or_has_no_variance_is_infinitely_odd(wrong: Tensors) -> None:
    """And it has no vote: of 0, 1, 2, 3 the centre is 1.5, distances are 1.5, 0.5, 0.5, 1.5, the middle one 1."""
    assert odd(m=wrong) == pytest.approx([0.5, 0.5, 1.5, float("inf")], abs=1e-3)


def test_two_donors_are_judged_with_the_receiver_and_one_only_for_being_finite() -> None:
    """Voters 0 (k), 1 (p), 100: centre 1, distances 1, 0, 99; the middle one is 1."""
    far = {**PERSONAL, "m": client(100.0, 1.0)}
    assert deviation(far, "k", ["p", "m"], NAMES).tolist() == pytest.approx([0.0, 99.0], abs=1e-2)
    assert deviation(far, "k", ["m"], NAMES).tolist() == [0.0]


def test_the_worst_layer_counts() -> None:
    """In layer a donor m is as the others, in layer b it is 12 times as far as the middle one."""
    second = tuple(BNNames("b", n.branch, f"b.{n.mean}", f"b.{n.variance}", f"b.{n.count}", ()) for n in NAMES)
    mean_in_b = {"k": 0.0, "p": 1.0, "q": 2.0, "r": 3.0, "m": 14.0}
    personal = {
        name: own | {f"b.{key}": value for key, value in client(mean_in_b[name], 1.0).items()}
        for name, own in {**PERSONAL, "m": client(2.0, 1.0)}.items()
    }
    assert deviation(personal, "k", ["p", "q", "r", "m"], (*NAMES, *second))[-1].item() == pytest.approx(12, abs=1e-3)


def test_refused_donors_weigh_nothing_and_do_not_poison_the_rest() -> None:
    personal = {**PERSONAL, "m": client(float("inf"), 1.0)}
    guarded = Propagation(Weighting.UNIFORM, guard=Guard(plausible=5.0))
    (estimate,) = propagate(personal, ["k"], ["p", "q", "r", "m"], NAMES, guarded).values()
    assert estimate["noised.mean"].tolist() == [2.0, 2.0]  # (1 + 2 + 3) / 3


def test_refusal_comes_before_the_cap() -> None:
    """Of four with weight ¼ one is refused; a cap of 0.3 is below a third, so the others share evenly."""
    alpha = torch.full((1, 4), 0.25, dtype=torch.float64)
    personal = {**PERSONAL, "m": client(1e6, 1.0)}
    found = Guard(cap=0.3, plausible=5.0).weights(alpha, personal, ["k"], ["p", "q", "r", "m"], NAMES)
    assert found[0].tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0.0])


def test_if_nobody_is_plausible_the_least_odd_donor_is_believed() -> None:
    """Layer a speaks against m, layer b against n, and m is the odder of the two; both are beyond the range."""
    second = tuple(BNNames("b", n.branch, f"b.{n.mean}", f"b.{n.variance}", f"b.{n.count}", ()) for n in NAMES)

    def both(in_a: float, in_b: float) -> Tensors:
        return client(in_a, 1.0) | {f"b.{key}": value for key, value in client(in_b, 1.0).items()}

    personal = {"k": both(0.0, 0.0), "m": both(90.0, 1.0), "n": both(1.0, 40.0)}
    names = (*NAMES, *second)
    assert deviation(personal, "k", ["m", "n"], names).tolist() == pytest.approx([89.0, 39.0], abs=1e-2)
    found = Guard(plausible=5.0).weights(rows([0.7, 0.3]), personal, ["k"], ["m", "n"], names)
    assert found.tolist() == [[0.0, 1.0]]
    unfit = {"k": PERSONAL["k"], "m": client(0.0, -1.0), "n": client(0.0, -1.0)}
    kept = Guard(plausible=5.0).weights(rows([0.7, 0.3]), unfit, ["k"], ["m", "n"], NAMES)
    assert kept.tolist() == [[0.7, 0.3]], "nobody is better than anybody"


def test_without_a_guard_eq_3_is_bit_for_bit_what_it_was() -> None:
    random = torch.Generator().manual_seed(1)
    alpha = torch.rand(3, 4, generator=random, dtype=torch.float64)
    donated = torch.rand(4, 5, generator=random, dtype=torch.float64)
    assert Guard().weights(alpha, {}, ["k"] * 3, ["p"] * 4, NAMES) is alpha
    assert torch.equal(Guard().combined(alpha, donated), alpha @ donated)


def test_a_donor_moves_its_neighbours_by_no_more_than_its_cap() -> None:
    """It moves its mean by 1000; with a cap of 0.25 the estimate moves by at most 250, with the median by at most 1."""
    alpha = rows([0.97, 0.01, 0.01, 0.01])
    honest, lying = rows([1.0], [2.0], [3.0], [1.5]), rows([1001.0], [2.0], [3.0], [1.5])
    for guard, most in ((Guard(cap=0.25), 250.0), (Guard(cap=0.25, combine=Combine.MEDIAN), 1.0)):
        weights = guard.weights(alpha, {}, ["k"], list("pqrs"), NAMES)
        moved = guard.combined(weights, lying) - guard.combined(weights, honest)
        assert 0 < moved.item() <= most + 1e-9


@pytest.mark.parametrize("settings", [{"cap": 0.0}, {"cap": 1.5}, {"plausible": 0.5}])
def test_limits_without_a_meaning_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=r"got method\.donor_"):
        Guard(**settings)  # type: ignore[arg-type]
