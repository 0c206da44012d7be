"""Lower precision: close to float32, and an attack's function has the network's weights of now, not older ones."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedrbn import PGD, Branch, Stats, dual
from fedrbn.federated.objectives import attacked
from fedrbn.federated.training.sgd import descend
from fedrbn.nets import build
from fedrbn.nets.dual_bn import Affine, DualNet
from fedrbn.nets.fast import fast
from fedrbn.nets.precision import as_now, in_precision
from fedrbn.nets.state import tensors
from fedrbn.nets.thin import ThinConv2d
from nets.lived_in import lived_in

ULP = 2.0**-8
"""Half the distance from 1 to the next number in bfloat16: the largest relative error of a rounding."""

pytestmark = pytest.mark.usefixtures("bfloat16")


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def digits(affine: Affine = Affine.SHARED) -> DualNet:
    return lived_in(fast(dual(build("digits", 10, 1 / 8, (3, 28, 28), seed=3), affine)))


def pixels_gradient(logits: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    loss = F.cross_entropy(logits(x), torch.arange(len(x)) % 10)
    return torch.autograd.grad(loss, x)[0]


def smooth(affine: Affine) -> DualNet:
    """Without ReLU and max pooling, in which a rounding can move the gradient to another pixel."""
    layers = (nn.Conv2d(3, 8, 5, padding=2), nn.BatchNorm2d(8), nn.Tanh(), nn.AvgPool2d(2))
    more = (nn.Conv2d(8, 8, 5, padding=2), nn.BatchNorm2d(8), nn.Tanh(), nn.Flatten(), nn.Linear(8 * 14 * 14, 10))
    for number, layer in enumerate((*layers, *more)):
        for parameter in layer.parameters():
            nn.init.uniform_(parameter, -0.1, 0.1, generator=torch.Generator().manual_seed(number))
    return lived_in(fast(dual(nn.Sequential(*layers, *more), affine)))


@pytest.mark.parametrize("branch", Branch)
@pytest.mark.parametrize("affine", Affine)
def test_logits_and_gradients_are_those_of_float32_up_to_rounding(branch: Branch, affine: Affine) -> None:
    """Three products forward and three back: √6 roundings if they are independent, and each of its factors is too."""
    net, x = smooth(affine), random(8, 3, 28, 28)
    exact, rough = as_now(net, branch), as_now(in_precision(net, torch.bfloat16), branch)
    assert rough(x).dtype == torch.float32
    assert (rough(x) - exact(x)).norm() < 4 * ULP * exact(x).norm()
    wanted, found = pixels_gradient(exact, x), pixels_gradient(rough, x)
    assert found.dtype == torch.float32
    assert (found - wanted).norm() < 4 * ULP * wanted.norm()


@pytest.mark.parametrize("branch", Branch)
def test_converting_and_folding_once_is_as_exact_as_converting_in_every_product(branch: Branch) -> None:
    net, x = digits(), random(8, 3, 28, 28)
    halved = in_precision(net, torch.bfloat16)
    wanted = pixels_gradient(as_now(net, branch), x)
    once = pixels_gradient(as_now(halved, branch), x)
    always = pixels_gradient(lambda z: halved(z, branch, Stats.FROZEN), x)
    assert (once - wanted).norm() < 1.5 * (always - wanted).norm()
    assert (once.sign() == wanted.sign()).float().mean() > 0.95


def test_in_float32_it_is_the_network_itself() -> None:
    net, x = digits(), random(3, 3, 28, 28)
    assert torch.equal(as_now(net, Branch.NOISED)(x), net(x, Branch.NOISED, Stats.FROZEN))


def test_after_an_optimizer_step_an_attack_uses_the_new_weights_and_statistics() -> None:
    """The function made after the step is bit for bit that of a network that never had other weights."""
    net = in_precision(digits(), torch.bfloat16)
    x, y = random(4, 3, 28, 28), torch.arange(4)
    before = as_now(net, Branch.NOISED)(x)
    F.cross_entropy(net(x, Branch.NOISED, Stats.BATCH), y).backward()
    descend(list(net.parameters()), 0.5)
    after = as_now(net, Branch.NOISED)(x)
    assert not torch.equal(before, after)
    assert torch.equal(after, as_now(copy.deepcopy(net), Branch.NOISED)(x))


def test_an_attack_leaves_the_network_as_it_was() -> None:
    net = in_precision(digits().train(), torch.bfloat16)
    before = {name: tensor.clone() for name, tensor in tensors(net).items()}
    places = dict(net.named_parameters())
    x = random(4, 3, 28, 28)
    noised = attacked(PGD(steps=2), net, x, torch.arange(4), torch.Generator().manual_seed(1))
    assert not torch.equal(noised, x)
    for name, tensor in tensors(net).items():
        assert torch.equal(tensor, before[name]), name
    for name, parameter in net.named_parameters():
        assert parameter is places[name]
        assert (parameter.dtype, parameter.requires_grad, parameter.grad) == (torch.float32, True, None)
    assert all(module.training for module in net.modules())


def convolution(inputs: int, outputs: int) -> nn.Conv2d:
    made = nn.Conv2d(inputs, outputs, 3, padding=1)
    torch.nn.init.normal_(made.weight, std=0.3, generator=torch.Generator().manual_seed(inputs))
    return made


def used_twice() -> nn.Module:
    """If the batch norm were folded into the convolution, its second use would be normalised too."""
    layer = convolution(2, 2)
    return nn.Sequential(layer, nn.BatchNorm2d(2), nn.ReLU(), layer, nn.Flatten())


def one_weight_in_two_layers() -> nn.Module:
    one, two = convolution(2, 2), convolution(2, 2)
    two.weight = one.weight
    return nn.Sequential(one, nn.BatchNorm2d(2), nn.ReLU(), two, nn.Flatten())


def one_norm_twice() -> nn.Module:
    norm = nn.BatchNorm2d(2)
    return nn.Sequential(convolution(2, 2), norm, nn.ReLU(), norm, nn.Flatten())


def with_a_hook() -> nn.Module:
    """The hook doubles what the batch norm reads."""
    layer = convolution(2, 2)
    layer.register_forward_hook(lambda _, __, output: 2 * output)
    return nn.Sequential(layer, nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten())


class Residual(nn.Sequential):
    """A container with a forward method of its own: the batch norm is not alone in reading the convolution."""

    def forward(self, x: Tensor) -> Tensor:
        hidden = self[0](x)
        return hidden + self[1](hidden)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "make",
    [
        used_twice,
        one_weight_in_two_layers,
        one_norm_twice,
        with_a_hook,
        lambda: nn.Sequential(Residual(convolution(2, 2), nn.BatchNorm2d(2)), nn.Flatten()),
        lambda: nn.Sequential(nn.Conv2d(2, 2, 3, bias=False), nn.BatchNorm2d(2), nn.Flatten()),
        lambda: nn.Sequential(nn.Sequential(convolution(2, 2)), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten()),
    ],
    ids=["used twice", "shared weight", "one norm twice", "hook", "own forward", "no bias", "nested"],
)
def test_networks_of_any_form_keep_their_values(make: Callable[[], nn.Module]) -> None:
    net = lived_in(dual(make()))
    x = random(5, 2, 6, 6)
    found = as_now(in_precision(net, torch.bfloat16), Branch.NOISED)(x)
    exact = net(x, Branch.NOISED)
    assert (found - exact).norm() < 4 * ULP * exact.norm()


def test_a_weight_that_another_layer_reads_too_stays_in_float32() -> None:
    class Weighted(nn.Module):
        """Multiplies by the weight of another layer, outside any product."""

        def __init__(self, weight: nn.Parameter) -> None:
            super().__init__()
            self.weight = weight
            self.seen: list[torch.dtype] = []

        def forward(self, x: Tensor) -> Tensor:
            self.seen.append(self.weight.dtype)
            return x * self.weight.sum(1)

    linear = nn.Linear(3, 3)
    net = in_precision(dual(nn.Sequential(linear, nn.BatchNorm1d(3), Weighted(linear.weight))), torch.bfloat16)
    as_now(net.eval(), Branch.CLEAN)(random(2, 3))
    assert net.network[2].seen == [torch.float32]  # type: ignore[index, union-attr]


def test_a_subclass_of_a_layer_reads_float32_weights() -> None:
    """It may use them outside the product, here to divide by their sizes."""

    class Standardised(nn.Linear):
        seen: ClassVar[list[torch.dtype]] = []

        def forward(self, input: Tensor) -> Tensor:  # noqa: A002
            self.seen.append(self.weight.dtype)
            return F.linear(input, self.weight / self.weight.norm(), self.bias)

    net = in_precision(dual(nn.Sequential(Standardised(3, 3), nn.BatchNorm1d(3))), torch.bfloat16)
    as_now(net.eval(), Branch.CLEAN)(random(2, 3))
    assert Standardised.seen == [torch.float32]


@pytest.mark.parametrize("side", [8, 9])
@pytest.mark.parametrize(("kernel", "padding"), [(5, 2), (3, 0), (4, 3), (2, 2)])
@pytest.mark.parametrize("stride", [1, 2])
def test_a_thin_convolution_has_the_gradients_of_the_ordinary_one_in_bfloat16(
    side: int, kernel: int, padding: int, stride: int
) -> None:
    """The reference takes the same rounded operands in float32, so only the last roundings differ."""
    thin = ThinConv2d(3, 20, kernel, stride, padding)
    torch.nn.init.normal_(thin.weight, generator=torch.Generator().manual_seed(1))
    x = random(2, 3, side, side)
    found = []
    for low in (True, False):
        own = (part.detach().bfloat16().float().requires_grad_() for part in (x, thin.weight, thin.bias))
        image, weight, bias = own
        if low:
            with torch.autocast("cpu", torch.bfloat16):
                output = thin._conv_forward(image, weight, bias)
        else:
            output = F.conv2d(image, weight, bias, stride, padding)
        up = (random(*output.shape, seed=2) - 0.5).bfloat16()
        found.append(torch.autograd.grad(output, (image, weight, bias), up.to(output)))
    for ours, exact in zip(*found, strict=True):
        assert (ours - exact).norm() < 2 * ULP * exact.norm()
