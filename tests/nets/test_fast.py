"""The fast network computes what the plain one does: logits, statistics, gradients at weights and at the input."""

from __future__ import annotations

import copy
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedrbn import PGD, Branch, Stats, dual
from fedrbn.federated.objectives import Adversarial, Calibrated, Objective, Standard
from fedrbn.nets import build
from fedrbn.nets.fast import LayoutFlatten, SkippingConv2d, fast
from fedrbn.nets.linear import OneDnnLinear, available
from fedrbn.nets.precision import in_precision
from fedrbn.nets.state import tensors
from fedrbn.nets.thin import ThinConv2d


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
    kind = SkippingConv2d if kernel == 1 and stride > 1 else ThinConv2d
    assert any(isinstance(module, kind) for module in quick.modules())
    found = []
    for each in (net, quick):
        x = random(rows, channels, side, side).double().requires_grad_()
        each(x, Branch.CLEAN, Stats.FROZEN).square().sum().backward()
        assert x.grad is not None
        found.append([x.grad, *(p.grad for p in each.parameters() if p.grad is not None)])
    for ours, theirs in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(ours, theirs)


STRIDED = """
import torch
from torch import nn
from fedrbn import Branch, Stats, dual
from fedrbn.nets.fast import fast

for channels in (1, 3, 4, 7, 8, 15, 16):
    layers = nn.Sequential(nn.Conv2d(3, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.Conv2d(channels, 8, 1, 2))
    net = fast(dual(layers))
    exact = dual(layers).double()
    x = torch.rand(32, 3, 28, 28)
    for _ in range(4):
        net(x, Branch.CLEAN, Stats.FROZEN).square().sum().backward()
    exact(x.double(), Branch.CLEAN, Stats.FROZEN).square().sum().backward()
    for ours, theirs in zip(net.parameters(), exact.parameters(), strict=True):
        if theirs.grad is not None:
            torch.testing.assert_close(ours.grad.double() / 4, theirs.grad, rtol=1e-3, atol=1e-2)
"""


@pytest.mark.parametrize("threads", [1, 2])
def test_strided_pointwise_convolutions_of_few_channels_neither_crash_nor_miscount(threads: int) -> None:
    """oneDNN issue 6035: it writes past its workspace, so the process may crash or get wrong gradients."""
    code = f"import torch\ntorch.set_num_threads({threads})\n{STRIDED}"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize("padding", [1, "valid", 0])
@pytest.mark.parametrize(
    ("mode", "groups", "stride"), [("zeros", 2, (2, 3)), ("circular", 1, 2), ("reflect", 4, (1, 2))]
)
def test_a_strided_pointwise_convolution_keeps_its_other_options(
    padding: int | str, mode: str, groups: int, stride: int | tuple[int, int]
) -> None:
    net = dual(nn.Sequential(nn.Conv2d(4, 8, 1, stride, padding, 1, groups, padding_mode=mode), nn.BatchNorm2d(8)))
    quick = fast(net)
    assert any(isinstance(module, SkippingConv2d) for module in quick.modules())
    x = random(3, 4, 9, 10)
    torch.testing.assert_close(quick(x, Branch.CLEAN), net(x, Branch.CLEAN))


def test_a_strided_pointwise_convolution_of_ones_own_keeps_the_layout_in_which_it_is_safe() -> None:
    class Own(nn.Conv2d):
        """Its forward pass may do anything, so it cannot be replaced."""

    net = fast(dual(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), Own(4, 8, 1, stride=2))))
    assert all(parameter.is_contiguous() for parameter in net.parameters())


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


@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(
    kernel=st.integers(1, 3),
    stride=st.integers(1, 3),
    ceil_mode=st.booleans(),
    inplace=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_pooling_before_relu_is_bit_equal_even_where_pixels_tie(
    kernel: int, stride: int, ceil_mode: bool, inplace: bool, seed: int
) -> None:
    """Values of −2 … 2 in steps of 1 have many ties, and windows without a positive value."""
    layers = [nn.ReLU(inplace=inplace), nn.MaxPool2d(kernel, stride, padding=kernel // 2, ceil_mode=ceil_mode)]
    net = dual(nn.Sequential(nn.BatchNorm2d(2, eps=0.0), *layers))
    quick = fast(net)
    assert [type(layer) for layer in quick.network.children()][1:] == [nn.MaxPool2d, nn.ReLU]
    pixels = torch.randint(-2, 3, (2, 2, 7, 7), generator=torch.Generator().manual_seed(seed)).float()
    found = []
    for each in (net, quick):
        x = pixels.clone().requires_grad_()
        output = each(x, Branch.CLEAN, Stats.FROZEN)
        (output * random(*output.shape, seed=seed)).sum().backward()
        found.append((output.detach(), x.grad))
    assert torch.equal(found[0][0], found[1][0])
    torch.testing.assert_close(found[0][1], found[1][1])


def test_pooling_that_returns_indices_stays_after_relu() -> None:
    quick = fast(dual(nn.Sequential(nn.BatchNorm2d(2), nn.ReLU(), nn.MaxPool2d(2, return_indices=True))))
    assert [type(layer) for layer in quick.network.children()][1:] == [nn.ReLU, nn.MaxPool2d]


def test_a_flattened_gradient_returns_in_the_layout_of_its_input() -> None:
    pixels = random(2, 3, 4, 5).to(memory_format=torch.channels_last).requires_grad_()
    flat = LayoutFlatten()(pixels)
    assert torch.equal(flat, pixels.flatten(1))
    weights = random(2, 60, seed=1)
    (gradient,) = torch.autograd.grad(flat, pixels, weights)
    assert torch.equal(gradient, weights.reshape(2, 3, 4, 5))
    assert gradient.is_contiguous(memory_format=torch.channels_last)
    other = random(2, 3, 4, 5)
    assert LayoutFlatten()(other).data_ptr() == other.data_ptr(), "what is not channels-last is not copied"


@pytest.mark.skipif(not available(), reason="this build of PyTorch has no oneDNN products")
def test_large_linear_layers_take_the_same_step_in_float32() -> None:
    """2048 · 2048 is the smallest layer that counts as large; float32, because that is what oneDNN computes in."""
    net = dual(nn.Sequential(nn.Flatten(), nn.Linear(2048, 2048), nn.BatchNorm1d(2048), nn.ReLU(), nn.Linear(2048, 10)))
    quick = fast(net)
    assert [type(layer) for layer in quick.modules() if isinstance(layer, nn.Linear)] == [OneDnnLinear, nn.Linear]
    x, y = random(5, 2, 32, 32), torch.arange(5)
    losses = [Adversarial(PGD(steps=2))(each, x, y, torch.Generator().manual_seed(1)) for each in (net, quick)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    for ours, theirs in zip(quick.parameters(), net.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-5)


@pytest.mark.usefixtures("bfloat16")
@pytest.mark.parametrize("objective", OBJECTIVES, ids=str)
def test_bfloat16_takes_about_the_same_step_with_float32_weights_and_logits(objective: Objective) -> None:
    """bfloat16 has 8 binary digits: 1 / 256 per rounding."""
    net = fast(dual(build("digits", 10, 1 / 8, (3, 28, 28), seed=3)).train())
    halved = in_precision(net, torch.bfloat16)
    x, y = random(8, 3, 28, 28), torch.arange(8)
    assert halved(x, Branch.CLEAN).dtype == torch.float32
    exact, rough = (objective(each, x, y, torch.Generator().manual_seed(1)) for each in (net, halved))
    assert exact != rough
    assert exact == pytest.approx(rough, rel=0.05)
    assert all(p.grad is None or p.grad.dtype == torch.float32 for p in halved.parameters())
    one, two = (
        torch.cat([p.grad.flatten() for p in each.parameters() if p.grad is not None]) for each in (net, halved)
    )
    assert torch.cosine_similarity(one, two, dim=0) > 0.95


def test_no_precision_changes_nothing() -> None:
    net = dual(build("digits", 10, 1 / 16, (3, 28, 28), seed=3))
    x = random(2, 3, 28, 28)
    assert torch.equal(in_precision(net, None)(x, Branch.CLEAN), net(x, Branch.CLEAN))
