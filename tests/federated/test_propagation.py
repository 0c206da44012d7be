"""Eqs. 3-4 against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from fedrbn.federated.propagation import DonorFreshness, Propagation, Weighting, propagate, similarity, softmax
from fedrbn.nets.state import BNNames
from fedrbn.types import Branch, Tensors


def names(layer: str, branch: Branch, affine: tuple[str, ...] = ()) -> BNNames:
    prefix = f"{layer}.{branch.value}"
    return BNNames(layer, branch, f"{prefix}.mean", f"{prefix}.var", f"{prefix}.count", affine)


LAYERS = tuple(names(layer, branch) for layer in ("a", "b") for branch in Branch)


def statistics(
    a: tuple[tuple[float, ...], tuple[float, ...]],
    b: tuple[tuple[float, ...], tuple[float, ...]],
    noised: tuple[float, ...] = (0.0, 0.0),
) -> Tensors:
    """Clean (mean, var) of layers a and b; on the noised branch mean = `noised`, var = 1 + `noised`."""
    own = {}
    for layer, (mean, var) in (("a", a), ("b", b)):
        own |= {f"{layer}.clean.mean": torch.tensor(mean), f"{layer}.clean.var": torch.tensor(var)}
        own |= {f"{layer}.noised.mean": torch.tensor(noised), f"{layer}.noised.var": 1 + torch.tensor(noised)}
    return own


# Layer a                          cos of means          cos of variances       Sim^a
#   k: (1, 0), (3, 4)
#   p: (3, 4), (3, 4)              3/5 = 0.6             25/25 = 1              0.80
#   q: (0, 2), (4, 3)              0                     24/25 = 0.96           0.48
# Layer b
#   k: (1, 0), (1, 0)
#   p: (4, 3), (3, 4)              4/5 = 0.8             3/5 = 0.6              0.70
#   q: (3, -4), (8, 6)             3/5 = 0.6             8/10 = 0.8             0.70
# Mean over the two layers: p 0.75, q 0.59.
PERSONAL = {
    "k": statistics(((1.0, 0.0), (3.0, 4.0)), ((1.0, 0.0), (1.0, 0.0))),
    "p": statistics(((3.0, 4.0), (3.0, 4.0)), ((4.0, 3.0), (3.0, 4.0)), noised=(10.0, 0.0)),
    "q": statistics(((0.0, 2.0), (4.0, 3.0)), ((3.0, -4.0), (8.0, 6.0)), noised=(0.0, 20.0)),
}


def test_similarity_is_the_mean_over_layers_of_the_two_cosines() -> None:
    found = similarity(PERSONAL, ["k"], ["p", "q"], LAYERS)
    torch.testing.assert_close(found, torch.tensor([[0.75, 0.59]], dtype=torch.float64))


def test_softmax_divides_by_the_temperature() -> None:
    # q = (0, T ln 3) gives exp(0) : exp(ln 3) = 1 : 3
    found = softmax(torch.tensor([[0.0, 0.01 * math.log(3)]], dtype=torch.float64), 0.01)
    torch.testing.assert_close(found, torch.tensor([[0.25, 0.75]], dtype=torch.float64))


def test_estimated_statistics() -> None:
    """T = 0.1: α_p = 1 / (1 + exp(−(0.75 − 0.59) / 0.1)) = 1 / (1 + exp(−1.6)) = 0.8320184, α_q = 0.1679816.

    μ̂ = α_p (10, 0) + α_q (0, 20) = (8.320184, 3.359632); σ̂² = α_p (11, 1) + α_q (1, 21) = 1 + μ̂.
    """
    (estimate,) = propagate(PERSONAL, ["k"], ["p", "q"], LAYERS, Propagation(temperature=0.1)).values()
    assert estimate.keys() == {"a.noised.mean", "a.noised.var", "b.noised.mean", "b.noised.var"}
    for layer in "ab":
        torch.testing.assert_close(estimate[f"{layer}.noised.mean"], torch.tensor([8.320184, 3.359632]))
        torch.testing.assert_close(estimate[f"{layer}.noised.var"], torch.tensor([9.320184, 4.359632]))


def test_the_default_temperature_is_the_papers() -> None:
    # T = 0.01: α_q = 1 / (1 + exp(16)) = 1.1253516e-7
    alpha = Propagation().weights(PERSONAL, ["k"], ["p", "q"], LAYERS)
    assert alpha[0, 1].item() == pytest.approx(1.1253516e-7, rel=1e-6)


def test_uniform_weighting_is_the_plain_mean() -> None:
    (estimate,) = propagate(PERSONAL, ["k"], ["p", "q"], LAYERS, Propagation(Weighting.UNIFORM)).values()
    torch.testing.assert_close(estimate["a.noised.mean"], torch.tensor([5.0, 10.0]))
    torch.testing.assert_close(estimate["a.noised.var"], torch.tensor([6.0, 11.0]))


def test_weights_sum_to_one_so_equal_donors_give_exactly_their_statistics() -> None:
    """A further division by |S| = 4 would give a quarter of them."""
    random = torch.Generator().manual_seed(0)
    drawn = torch.rand(6, 4, 2, generator=random).tolist()
    personal = {
        f"c{i}": statistics((tuple(row[0]), tuple(row[1])), (tuple(row[2]), tuple(row[3])), noised=(3.0, 5.0))
        for i, row in enumerate(drawn)
    }
    donors, receivers = ["c0", "c1", "c2", "c3"], ["c4", "c5"]
    alpha = Propagation(temperature=0.05).weights(personal, receivers, donors, LAYERS)
    torch.testing.assert_close(alpha.sum(1), torch.ones(2, dtype=torch.float64))
    assert alpha.std() > 0.01, "the weights differ, so this is not the uniform case"
    estimates = propagate(personal, receivers, donors, LAYERS, Propagation(temperature=0.05))
    for receiver in receivers:
        torch.testing.assert_close(estimates[receiver]["b.noised.mean"], torch.tensor([3.0, 5.0]))


def test_more_similar_donors_weigh_more() -> None:
    alpha = Propagation(temperature=1.0).weights(PERSONAL, ["k"], ["q", "p"], LAYERS)
    assert alpha[0, 1] > alpha[0, 0]


def test_a_receiver_that_never_trained_weighs_its_donors_the_same() -> None:
    """Its statistics are those the network was born with, which say nothing of data: k's would favour p."""
    alpha = Propagation().weights(PERSONAL | {"new": PERSONAL["k"]}, ["new", "k"], ["p", "q"], LAYERS, NEW)
    assert alpha[0].tolist() == [0.5, 0.5]
    assert alpha[1, 0] > 0.99, "the other receiver keeps its own row"


NEW = DonorFreshness(untrained=frozenset({"new"}))


def test_a_receiver_that_did_train_is_believed_even_if_its_means_are_zero() -> None:
    """Cosines with zero means count 0, with variances (1, 1): p (7/√50 + 7/√50)/4 = 0.494975, q (7/√50 + 14/√200)/4,
    the same; of p' with variances (1, 1) it is (1 + 1)/4 = 0.5, so p' weighs a little more than q."""
    zero = statistics(((0.0, 0.0), (1.0, 1.0)), ((0.0, 0.0), (1.0, 1.0)))
    near = statistics(((3.0, 4.0), (1.0, 1.0)), ((4.0, 3.0), (1.0, 1.0)))
    found = similarity(PERSONAL | {"z": zero, "p": near}, ["z"], ["p", "q"], LAYERS)
    torch.testing.assert_close(found, torch.tensor([[0.5, 7 / math.sqrt(50) / 2]], dtype=torch.float64))


def test_a_stale_donor_fades() -> None:
    """α = (0.8320184, 0.1679816) as above; p counts a quarter: (0.2080046, 0.1679816) / 0.3759862."""
    weigh = Propagation(temperature=0.1).weights
    alpha = weigh(PERSONAL, ["k"], ["p", "q"], LAYERS, DonorFreshness(fading={"p": 0.25}))
    torch.testing.assert_close(alpha, torch.tensor([[0.5532240, 0.4467760]], dtype=torch.float64), rtol=1e-6, atol=0)
    uniform = Propagation(Weighting.UNIFORM).weights(
        PERSONAL, ["k"], ["p", "q"], LAYERS, DonorFreshness(fading={"p": 0.25})
    )
    assert uniform.tolist() == [[0.2, 0.8]]


def test_donors_that_are_equally_stale_weigh_as_if_they_were_fresh() -> None:
    weigh = Propagation(temperature=0.1).weights
    both = weigh(PERSONAL, ["k"], ["p", "q"], LAYERS, DonorFreshness(fading={"p": 1e-12, "q": 1e-12}))
    torch.testing.assert_close(both, weigh(PERSONAL, ["k"], ["p", "q"], LAYERS))
    fresh = weigh(PERSONAL, ["k"], ["p", "q"], LAYERS, DonorFreshness(fading={"p": 1.0}))
    assert torch.equal(fresh, weigh(PERSONAL, ["k"], ["p", "q"], LAYERS)), "bit for bit"


def test_a_trained_receiver_with_one_zero_mean_is_not_mistaken_for_a_new_one() -> None:
    # Layer a's cosine of means is 0 for both; p: (0 + 1)/2 and 0.7, q: (0 + 0.96)/2 and 0.7 -> 0.60 and 0.59.
    partly = statistics(((0.0, 0.0), (3.0, 4.0)), ((1.0, 0.0), (1.0, 0.0)))
    found = similarity(PERSONAL | {"k": partly}, ["k"], ["p", "q"], LAYERS)
    torch.testing.assert_close(found, torch.tensor([[0.60, 0.59]], dtype=torch.float64))


def test_nobody_to_give_or_to_receive_changes_nothing() -> None:
    assert propagate(PERSONAL, ["k"], [], LAYERS, Propagation()) == {}
    assert propagate(PERSONAL, [], ["p"], LAYERS, Propagation()) == {}


def test_a_local_affine_of_the_noised_branch_travels_with_the_statistics_and_a_shared_one_does_not() -> None:
    layers = (names("a", Branch.CLEAN), names("a", Branch.NOISED, affine=("a.noised.weight", "a.noised.bias")))
    personal = {client: own | {"a.noised.weight": own["a.noised.mean"] + 2} for client, own in PERSONAL.items()}
    (estimate,) = propagate(personal, ["k"], ["p", "q"], layers, Propagation(Weighting.UNIFORM)).values()
    torch.testing.assert_close(estimate["a.noised.weight"], torch.tensor([7.0, 12.0]))
    assert "a.noised.bias" not in estimate, "it is not among the personal tensors: the server averages it"


def test_estimates_keep_the_dtype_and_do_not_share_memory() -> None:
    estimates = propagate(PERSONAL | {"m": PERSONAL["k"]}, ["k", "m"], ["p"], LAYERS, Propagation())
    first, second = estimates["k"]["a.noised.mean"], estimates["m"]["a.noised.mean"]
    assert first.dtype == torch.float32
    first.zero_()
    assert second.tolist() == [10.0, 0.0]


def test_more_receivers_than_a_block_get_what_they_would_get_alone() -> None:
    """2,050 receivers are three blocks, the last of two; every second one is like q instead of k."""
    receivers = [f"r{i}" for i in range(2050)]
    personal = PERSONAL | {name: PERSONAL["q" if i % 2 else "k"] for i, name in enumerate(receivers)}
    found = propagate(personal, receivers, ["p", "q"], LAYERS, Propagation(temperature=0.1))
    assert list(found) == receivers
    for i in (0, 1, 1023, 1024, 2047, 2048, 2049):
        alone = propagate(personal, [receivers[i]], ["p", "q"], LAYERS, Propagation(temperature=0.1))[receivers[i]]
        torch.testing.assert_close(found[receivers[i]], alone)
