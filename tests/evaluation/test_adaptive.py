"""Adaptive evaluation: the worst over attacks on the deployment, each branch and their mean loss, sample by sample."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from fedrbn.attacks import PGD, Untargeted, attack_named
from fedrbn.attacks.pgd import mia
from fedrbn.data.samples import Samples
from fedrbn.evaluation.accuracy import (
    CONFIDENT,
    Accuracy,
    PerInput,
    attack_through,
    logits_of,
    more_confident,
    other_views,
    surface_of,
)
from fedrbn.nets.dual_bn import Affine, DualBatchNorm, DualNet, dual, single
from fedrbn.types import Branch

EPS = 0.05


def images(count: int = 60) -> Samples:
    """Two grey pixels per image; class 1 where the first is the brighter one."""
    random = torch.Generator().manual_seed(1)
    pixels = torch.randint(60, 196, (count, 1, 1, 2), generator=random)
    return Samples(pixels.to(torch.uint8), (pixels[:, 0, 0, 0] > pixels[:, 0, 0, 1]).long())


def linear(dual_bn: bool = True, affine: Affine = Affine.SHARED) -> DualNet:
    """Logits (−d, d) with d = 10 · (first pixel − second pixel), through a batch norm that changes nothing."""
    layers = nn.Sequential(nn.Flatten(), nn.Linear(2, 2, bias=False), nn.BatchNorm1d(2))
    with torch.no_grad():
        layers[1].weight.copy_(torch.tensor([[-10.0, 10.0], [10.0, -10.0]]))
    return (dual(layers, affine) if dual_bn else single(layers)).eval()


def blinded(branch: Branch) -> DualNet:
    """The linear network whose logits on one branch are the negated ones: an attack through it goes the wrong way."""
    net = linear(affine=Affine.SEPARATE)
    for module in net.modules():
        if isinstance(module, DualBatchNorm):
            module.branch(branch).weight.data.neg_()
    return net


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(2)


def test_robust_samples_are_those_farther_than_twice_epsilon_from_the_boundary() -> None:
    # |first − second| shrinks by at most 2ε under an L∞ attack, so exactly the samples above that withstand it.
    samples = images()
    answers = Accuracy(Branch.CLEAN, "mia", Untargeted(mia(EPS, 5, EPS)))(linear(), samples, generator())
    x, _ = samples.pixels(slice(None))
    gap = (x[:, 0, 0, 0] - x[:, 0, 0, 1]).abs()
    assert answers["clean@clean"].all()
    assert answers["mia@clean"].equal(gap > 2 * EPS)


def test_leaving_out_wrong_samples_changes_nothing() -> None:
    # The plain way: attack everything, count what is right both before and after. MIA draws no random numbers.
    net, samples, attack = linear(), images(), Untargeted(mia(EPS, 5, 0.02))
    x, y = samples.pixels(slice(None))
    y = torch.where(torch.arange(len(y)) % 3 == 0, 1 - y, y)  # a third of the labels is wrong
    logits = logits_of(net, Branch.NOISED)
    plain = (logits(x).argmax(1) == y) & (logits(attack(logits, x, y, generator())).argmax(1) == y)
    fast = Accuracy(Branch.NOISED, "mia", attack)(net, Samples(samples.images, y), generator())
    assert fast["mia@noised"].equal(plain)
    assert fast["clean@noised"].sum() == 40


def test_an_attack_through_the_wrong_branch_flatters_and_the_adaptive_answer_does_not() -> None:
    # BN_a predicts; BN_c is its negation, so an attack through BN_c pushes every sample to the safe side of BN_a.
    net, samples, attack = blinded(Branch.CLEAN), images(), Untargeted(mia(EPS, 5, EPS))
    x, y = samples.pixels(slice(None))
    through_clean = attack_through(attack, [logits_of(net, Branch.CLEAN)], x, y, generator())
    flattering = (logits_of(net, Branch.NOISED)(through_clean).argmax(1) == y).double().mean()
    honest = Accuracy(Branch.NOISED, "mia", attack, adaptive=True)(net, samples, generator())
    assert flattering == 1
    assert honest["mia@noised adaptive"].double().mean() < 0.95


def test_adaptive_takes_what_any_view_brings_down() -> None:
    # BN_a predicts with a flat gradient (logits rounded there would do the same): here its own attack is one of zero
    # steps' worth, so only the view through BN_c finds the worst case.
    def blind(logits, x: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:  # moves only if BN_c is looked at
        sees_clean = torch.allclose(logits(x), logits_of(net, Branch.CLEAN)(x), atol=1e-4)
        return Untargeted(mia(EPS, 5, EPS))(logits, x, y, generator) if sees_clean else x

    net, samples = linear(), images()
    for module in net.modules():
        if isinstance(module, DualBatchNorm):
            module.noised.running_var.fill_(1.5)  # other logits, the same decisions
    answers = Accuracy(Branch.NOISED, "blind", blind, adaptive=True)(net, samples, generator())
    reference = Accuracy(Branch.CLEAN, "mia", Untargeted(mia(EPS, 5, EPS)))(net, samples, generator())
    assert answers["blind@noised"].equal(answers["clean@noised"])
    assert answers["blind@noised adaptive"].equal(reference["mia@clean"])


def test_views_of_an_adaptive_adversary() -> None:
    assert other_views(linear(), Branch.NOISED) == ((Branch.CLEAN,), (Branch.CLEAN, Branch.NOISED))
    assert other_views(linear(), CONFIDENT) == ((Branch.CLEAN,), (Branch.NOISED,), (Branch.CLEAN, Branch.NOISED))
    assert other_views(linear(dual_bn=False), Branch.CLEAN) == ()


def test_the_mean_view_attacks_the_mean_loss() -> None:
    # Branches with opposite logits: the mean cross-entropy of ±d is least at d = 0 and grows either way, so its
    # gradient at a sample points away from the boundary, where neither branch alone would go together.
    net, samples = blinded(Branch.CLEAN), images(20)
    x, y = samples.pixels(slice(None))
    views = [logits_of(net, branch) for branch in Branch]
    moved = attack_through(Untargeted(mia(EPS, 1, EPS)), views, x, y, generator())
    before, after = ((z[:, 0, 0, 0] - z[:, 0, 0, 1]).abs() for z in (x, moved))
    assert torch.allclose(after[before > 0], before[before > 0] + 2 * EPS, atol=1e-6)


def test_a_detector_picks_the_more_confident_branch_and_is_attacked_through_its_choice() -> None:
    clean = torch.tensor([[0.0, 1.0], [0.0, 3.0]])
    noised = torch.tensor([[2.0, 0.0], [2.0, 0.0]])
    assert more_confident(clean, noised).tolist() == [True, False]
    net = linear()
    for module in net.modules():
        if isinstance(module, DualBatchNorm):
            module.noised.running_var.fill_(100.0)  # BN_a is ten times less sure, so BN_c is always picked
    samples, attack = images(), Untargeted(mia(EPS, 5, EPS))
    picked = Accuracy(CONFIDENT, "mia", attack, adaptive=True)(net, samples, generator())
    branch = Accuracy(Branch.CLEAN, "mia", attack)(net, samples, generator())
    assert picked["mia@confident"].equal(branch["mia@clean"])
    x, _ = samples.pixels(slice(None))
    assert torch.equal(logits_of(net, CONFIDENT)(x), logits_of(net, Branch.CLEAN)(x))
    always = PerInput("always BN_a", lambda clean, noised: torch.ones(len(clean), dtype=torch.bool))
    assert torch.equal(logits_of(net, always)(x), logits_of(net, Branch.NOISED)(x))


def test_corruptions_count_all_samples_and_a_subset_has_its_own_clean_accuracy() -> None:
    net, samples = linear(), Samples(torch.zeros(6, 1, 8, 8, dtype=torch.uint8), torch.zeros(6, dtype=torch.int64))
    layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 2), nn.BatchNorm1d(2))
    net = dual(layers).eval()
    with torch.no_grad():
        net.network[1].weight.zero_()
        net.network[1].bias.copy_(torch.tensor([0.0, 1.0]))  # everything is class 1: all six are wrong
    answers = Accuracy(Branch.CLEAN, "blur", attack_named("gaussian-blur"), limit=4)(net, samples, generator())
    assert set(answers) == {"clean for blur@clean", "blur@clean"}
    assert [len(answer) for answer in answers.values()] == [4, 4]
    assert not answers["blur@clean"].any()


def test_no_samples_no_answers() -> None:
    empty = Samples(torch.zeros(0, 1, 1, 2, dtype=torch.uint8), torch.zeros(0, dtype=torch.int64))
    answers = Accuracy(Branch.CLEAN, "pgd", Untargeted(PGD()), adaptive=True)(linear(), empty, generator())
    assert {len(answer) for answer in answers.values()} == {0}


@pytest.mark.parametrize("branch", list(Branch))
def test_evaluation_leaves_the_network_as_it_was(branch: Branch) -> None:
    net = linear()
    before = copy.deepcopy(dict(net.state_dict()))
    Accuracy(branch, "pgd", Untargeted(PGD(EPS)), adaptive=True)(net, images(), generator())
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert all(parameter.grad is None for parameter in net.parameters())


def test_the_adversary_sees_what_is_deployed() -> None:
    net = blinded(Branch.CLEAN)
    x, _ = images().pixels(slice(None))
    for deployment in (*Branch, CONFIDENT):
        assert torch.allclose(surface_of(net, deployment, x[:2])(x), logits_of(net, deployment)(x), atol=1e-5)
