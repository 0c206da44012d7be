"""Rows of several owners in one pass: each is normalised with its owner's batch norm, and with nobody else's."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fedrbn.errors import NetworkError
from fedrbn.nets import build
from fedrbn.nets.dual_bn import Affine, DualNet, dual, single
from fedrbn.nets.fast import fast
from fedrbn.nets.joint import RowNorms, place, separable
from fedrbn.nets.state import batch_norms, load, tensors
from fedrbn.types import Branch, Tensors

SIX = torch.rand(6, 3, 28, 28, generator=torch.Generator().manual_seed(1))


def test_each_row_is_scaled_and_shifted_by_its_owner() -> None:
    """y = w (x − μ) / sqrt(σ² + ε₀) + b with ε₀ = 1.

    First owner, BN_c:  3 (5 − 1) / sqrt(3 + 1) + 0.5 = 6.5. Its BN_a has μ = 2, σ² = 8: 3 (5 − 2) / 3 + 0.5 = 3.5.
    Second owner, BN_c: 2 (5 − 3) / sqrt(15 + 1) + 0 = 1.
    """
    net = dual(nn.Sequential(nn.BatchNorm1d(1, eps=1.0))).eval()
    first = {"clean.weight": 3.0, "clean.bias": 0.5, "clean.running_mean": 1.0, "clean.running_var": 3.0}
    first |= {"noised.running_mean": 2.0, "noised.running_var": 8.0}
    second = {"clean.weight": 2.0, "clean.bias": 0.0, "clean.running_mean": 3.0, "clean.running_var": 15.0}
    owners = [{f"network.0.{name}": torch.tensor([value]) for name, value in own.items()} for own in (first, second)]
    rows = torch.tensor([place(0, Branch.CLEAN), place(1, Branch.CLEAN), place(0, Branch.NOISED)])
    found = net.through(torch.full((3, 1), 5.0), RowNorms(net, owners)(rows))
    assert found[:, 0].tolist() == [6.5, 1.0, 3.5]


def owner(net: DualNet, seed: int) -> Tensors:
    """Batch norm of somebody who has trained, some weights below zero."""
    random, values = torch.Generator().manual_seed(seed), tensors(net)
    drawn: Tensors = {}
    for names in batch_norms(net):
        size = values[names.mean].shape
        drawn[names.mean] = 0.3 * torch.randn(size, generator=random)
        drawn[names.variance] = 0.2 + torch.rand(size, generator=random)
        drawn |= {name: 0.5 + torch.randn(size, generator=random) for name in names.affine}
    return drawn


MADE = {
    "dual": lambda: dual(build("digits", 10, 0.0625, (3, 28, 28), seed=1)),
    "dual, separate affine": lambda: dual(build("digits", 10, 0.0625, (3, 28, 28), seed=1), Affine.SEPARATE),
    "fast": lambda: fast(dual(build("digits", 10, 0.0625, (3, 28, 28), seed=1))),
    "single": lambda: single(build("digits", 10, 0.0625, (3, 28, 28), seed=1)),
}


@pytest.mark.parametrize("make", MADE.values(), ids=MADE.keys())
def test_logits_and_gradients_are_those_of_each_owner_alone(make: object) -> None:
    net = make().eval()  # type: ignore[operator]
    owners = [owner(net, seed) for seed in (1, 2, 3)]
    whose = [(0, Branch.CLEAN), (2, Branch.NOISED), (1, Branch.CLEAN), (0, Branch.NOISED), (1, Branch.NOISED)]
    x = SIX[:5].clone().requires_grad_()
    joint = net.through(x, RowNorms(net, owners)(torch.tensor([place(*who) for who in whose])))
    weights = torch.arange(10.0)
    (gradient,) = torch.autograd.grad((joint * weights).sum(), x)
    for row, (who, branch) in enumerate(whose):
        load(net, owners[who])
        alone = SIX[row : row + 1].clone().requires_grad_()
        logits = net.logits(branch)(alone)
        assert torch.allclose(joint[row : row + 1], logits, atol=1e-4, rtol=1e-4)
        (expected,) = torch.autograd.grad((logits * weights).sum(), alone)
        assert torch.allclose(gradient[row : row + 1], expected, atol=1e-4 * float(expected.abs().max()))


class Patches(nn.Module):
    """Sees four patches of every image, and adds up what it thinks of them."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.last = nn.BatchNorm1d(3), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        patches = x.reshape(len(x), 3, 2, 14, 2, 14).permute(0, 2, 4, 1, 3, 5).reshape(4 * len(x), 3, -1).mean(2)
        return self.last(self.norm(patches)).reshape(len(x), 4, 2).sum(1)  # type: ignore[no-any-return]


class Mixing(nn.Module):
    """Compares every image with the mean of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x: Tensor) -> Tensor:
        means = x.mean((2, 3))
        return self.norm(means - means.mean(0))  # type: ignore[no-any-return]


class Noisy(Mixing):
    """Draws random numbers, and uses none of them."""

    def forward(self, x: Tensor) -> Tensor:
        torch.rand(1)
        return self.norm(x.mean((2, 3)))  # type: ignore[no-any-return]


class AtLeastTwo(Mixing):
    """Cannot be called with one image."""

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x.mean((2, 3)).squeeze())  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("network", "expected"), [(Patches, True), (Mixing, False), (Noisy, False), (AtLeastTwo, False)]
)
def test_rows_share_a_pass_only_where_they_do_not_notice(network: type[nn.Module], expected: bool) -> None:
    torch.manual_seed(1)
    assert separable(dual(network()).eval(), SIX[:3]) is expected


def test_rows_that_were_mixed_before_batch_norm_have_no_owner() -> None:
    net = single(nn.Sequential(nn.BatchNorm1d(3))).eval()
    with pytest.raises(NetworkError, match="got 5 rows at a batch-norm layer of a joint pass; expected a multiple of"):
        net.through(torch.ones(5, 3), RowNorms(net, [{}])(torch.zeros(3, dtype=torch.int64)))
