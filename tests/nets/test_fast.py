"""The fast network computes what the plain one does: logits, statistics, gradients at weights and at the input."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedrbn import PGD, Branch, Stats, dual
from fedrbn.federated.objectives import Adversarial, Calibrated, Objective, Standard
from fedrbn.nets import build
from fedrbn.nets.dual_bn import tensors
from fedrbn.nets.fast import ThinConv2d, fast


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


@settings(max_examples=40, deadline=None)
@given(
    channels=st.integers(1, 4),
    filters=st.integers(1, 9),
    kernel=st.integers(1, 5),
    stride=st.integers(1, 3),
    padding=st.integers(0, 3),
    dilation=st.integers(1, 2),
    bias=st.booleans(),
    rows=st.integers(1, 5),
    side=st.integers(9, 14),
)
def test_a_thin_convolution_has_the_gradients_of_the_ordinary_one(
    channels: int, filters: int, kernel: int, stride: int, padding: int, dilation: int, bias: bool, rows: int, side: int
) -> None:
    layer = nn.Conv2d(channels, filters, kernel, stride, padding, dilation, bias=bias)
    torch.nn.init.normal_(layer.weight, generator=torch.Generator().manual_seed(1))
    net = dual(nn.Sequential(layer, nn.BatchNorm2d(filters)).double())
    quick = fast(net)
    assert any(isinstance(module, ThinConv2d) for module in quick.modules())
    found = []
    for each in (net, quick):
        x = random(rows, channels, side, side).double().requires_grad_()
        each(x, Branch.CLEAN, Stats.FROZEN).square().sum().backward()
        assert x.grad is not None
        found.append([x.grad, *(p.grad for p in each.parameters() if p.grad is not None)])
    for ours, theirs in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(ours, theirs)


OBJECTIVES = [Standard(), Calibrated(0.5), Calibrated(0.5, clip=0.1), Calibrated(1.0), Adversarial(PGD(steps=3))]


@pytest.mark.parametrize("objective", OBJECTIVES, ids=str)
@pytest.mark.parametrize(("name", "side"), [("digits", 28), ("alexnet", 64), ("resnet18", 32)])
@pytest.mark.parametrize("rows", [8, 5])
def test_every_objective_takes_the_same_step(objective: Objective, name: str, side: int, rows: int) -> None:
    net = dual(build(name, 10, 1 / 16, (3, side, side), seed=3)).double().eval()
    quick = fast(net)
    x, y = random(rows, 3, side, side).double(), torch.arange(rows) % 10
    losses = [objective(each, x, y, torch.Generator().manual_seed(1)) for each in (net, quick)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-9)
    for (name_, ours), theirs in zip(quick.named_parameters(), net.parameters(), strict=True):
        assert (ours.grad is None) == (theirs.grad is None), name_
        if ours.grad is not None:
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-6, atol=1e-9)
    for (name_, mine), other in zip(tensors(quick).items(), tensors(net).values(), strict=True):
        torch.testing.assert_close(mine, other, msg=name_)


def test_the_copy_keeps_names_and_values_and_leaves_the_original_alone() -> None:
    net = dual(build("digits", 10, 1 / 16, (3, 28, 28), seed=3))
    before = copy.deepcopy(net)
    quick = fast(net)
    assert {k: v.shape for k, v in tensors(quick).items()} == {k: v.shape for k, v in tensors(net).items()}
    with torch.no_grad():
        for parameter in quick.parameters():
            parameter.zero_()
    assert all(torch.equal(a, b) for a, b in zip(tensors(net).values(), tensors(before).values(), strict=True))
    assert not any(isinstance(module, ThinConv2d) for module in net.modules())


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(5, 4, 3),
        nn.Conv2d(4, 4, 3, groups=2),
        nn.Conv2d(3, 4, 3, padding="same"),
        nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular"),
    ],
    ids=["wide", "grouped", "named padding", "circular"],
)
def test_other_convolutions_stay_as_they_are(layer: nn.Conv2d) -> None:
    net = dual(nn.Sequential(layer, nn.BatchNorm2d(4)))
    quick = fast(net)
    assert not any(isinstance(module, ThinConv2d) for module in quick.modules())
    x = random(2, layer.in_channels, 8, 8)
    torch.testing.assert_close(quick(x, Branch.CLEAN), net(x, Branch.CLEAN))


def test_a_layer_in_two_places_stays_one_layer() -> None:
    shared = nn.Conv2d(3, 3, 3, padding=1)
    net = dual(nn.Sequential(shared, nn.BatchNorm2d(3), shared))
    quick = fast(net)
    assert sum(isinstance(module, nn.Conv2d) for module in quick.modules()) == 1
    x = random(2, 3, 8, 8)
    torch.testing.assert_close(quick(x, Branch.CLEAN), net(x, Branch.CLEAN))
