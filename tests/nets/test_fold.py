from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from fedrbn.nets.digits import digits_cnn
from fedrbn.nets.fold import fold
from fedrbn.nets.resnet import resnet18
from nets.lived_in import lived_in


def test_known_answer() -> None:
    """BN(2x + 1) with μ = 3, σ² + ε₀ = 4, w = 5, b = 7 is 5 (2x − 2) / 2 + 7 = 5x + 2."""
    linear, norm = nn.Linear(1, 1), nn.BatchNorm1d(1, eps=0.5)
    with torch.no_grad():
        linear.weight.fill_(2), linear.bias.fill_(1)
        norm.running_mean.fill_(3), norm.running_var.fill_(3.5)
        norm.weight.fill_(5), norm.bias.fill_(7)
    result = fold(nn.Sequential(linear, norm), torch.zeros(2, 1))
    assert result.folded == (("0", "1"),)
    merged = result.net.get_submodule("0")
    assert merged.weight.item() == pytest.approx(5)
    assert merged.bias.item() == pytest.approx(2)
    assert isinstance(result.net.get_submodule("1"), nn.Identity)


@pytest.mark.parametrize(
    ("make", "size", "norms"),
    [(digits_cnn, 28, 5), (resnet18, 32, 20), (resnet18, 64, 20)],
    ids=["digits-28", "resnet18-32", "resnet18-64"],
)
def test_our_networks_fold_wholly(make: object, size: int, norms: int) -> None:
    net = lived_in(make(classes=10, width=1 / 8, image_size=size))  # type: ignore[operator]
    x = torch.rand(4, 3, size, size, generator=torch.Generator().manual_seed(1))
    result = fold(net, x[:2])
    assert len(result.folded) == norms
    assert not result.kept
    with torch.no_grad():
        expected, got = net(x), result.net(x)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5 * float(expected.abs().max()))


def test_the_given_network_is_left_alone() -> None:
    net = lived_in(digits_cnn(classes=10, width=1 / 16)).train()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    fold(net, torch.zeros(2, 3, 28, 28))
    assert net.training
    assert all(torch.equal(before[name], tensor) for name, tensor in net.state_dict().items())


class Odd(nn.Module):
    """A convolution and a batch norm, put together by `kind` in a way that must not be folded."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.conv = nn.Conv1d(3, 3, 1)
        self.linear = nn.Linear(3, 3)
        self.norm = nn.BatchNorm1d(3)
        if kind == "tied":
            self.other = nn.Conv1d(3, 3, 1)
            self.other.weight = self.conv.weight

    def forward(self, x: Tensor) -> Tensor:
        ways = {
            "norm first": lambda: self.conv(self.norm(x)),
            "output used twice": lambda: self._twice(self.conv(x)),
            "norm runs twice": lambda: self.norm(self.norm(self.conv(x))),
            "layer runs twice": lambda: self.norm(self.conv(x)) + self.conv(x),
            "linear over another axis": lambda: self.norm(self.linear(x)),
            "weight read": lambda: self.norm(self.conv(x)) + self.conv.weight.sum(),
            "tied": lambda: self.norm(self.conv(x)) + self.other(x),
            "depends on data": lambda: self.norm(self.conv(x)) if x.sum() > 0 else x,
        }
        return ways[self.kind]()

    def _twice(self, y: Tensor) -> Tensor:
        return self.norm(y) + y


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("norm first", "not the output of a layer"),
        ("output used twice", "used elsewhere"),
        ("norm runs twice", "runs 2 times"),
        ("layer runs twice", "runs 2 times"),
        ("linear over another axis", "channels may be elsewhere"),
        ("weight read", "used directly"),
        ("tied", "shared"),
        ("depends on data", "cannot be traced"),
    ],
)
def test_what_cannot_be_proven_is_kept(kind: str, reason: str) -> None:
    net = lived_in(Odd(kind))
    x = torch.rand(2, 3, 3, generator=torch.Generator().manual_seed(1))
    result = fold(net, x)
    assert not result.folded
    assert reason in result.kept["norm"]
    with torch.no_grad():
        assert torch.equal(result.net(x), net(x))


def test_layers_with_hooks_are_kept() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    net[0].register_forward_hook(lambda _module, _inputs, output: 2 * output)
    assert "hooks" in fold(net, torch.zeros(2, 2)).kept["1"]


def test_batch_norm_without_affine_and_convolution_with_groups() -> None:
    net = lived_in(nn.Sequential(nn.Conv2d(4, 8, 3, groups=2, bias=False), nn.BatchNorm2d(8, affine=False)))
    x = torch.rand(2, 4, 5, 5, generator=torch.Generator().manual_seed(1))
    result = fold(net, x)
    assert len(result.folded) == 1
    with torch.no_grad():
        assert math.isclose(float((result.net(x) - net(x)).abs().max()), 0, abs_tol=1e-6)


def test_a_network_that_writes_to_itself_is_not_left_with_what_tracing_passed_through() -> None:
    class Noting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
            self.last = torch.zeros(1, 2)

        def forward(self, x: Tensor) -> Tensor:
            self.last = x * 1
            return self.layers(x)  # type: ignore[no-any-return]

    folded = fold(Noting().eval(), torch.zeros(2, 2))
    assert isinstance(folded.net.last, Tensor)
