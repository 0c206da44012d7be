"""The paper's three networks: sizes and costs derived by hand from its tables, on the meta device where full-size."""

from __future__ import annotations

from math import prod

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedrbn.nets.alexnet import alexnet_bn
from fedrbn.nets.digits import Normalise, digits_cnn, scaled
from fedrbn.nets.resnet import Block, resnet18


def parameters(net: nn.Module) -> int:
    return sum(parameter.numel() for parameter in net.parameters())


def macs(net: nn.Module, x: Tensor) -> int:
    """Multiply-adds of one sample in convolutions and linear layers: outputs times the products behind each."""
    counted: list[int] = []

    def count(layer: nn.Module, _: object, y: Tensor) -> None:
        counted.append(prod(y.shape[1:]) * prod(layer.weight.shape[1:]))

    for layer in net.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            layer.register_forward_hook(count)
    net.eval()(x)
    return sum(counted)


def shape_at(net: nn.Sequential, layer: str, x: Tensor) -> tuple[int, ...]:
    for name, module in net.eval().named_children():
        x = module(x)
        if name == layer:
            return tuple(x.shape)
    raise AssertionError(f"no layer {layer}")


def test_normalise_maps_pixels_to_minus_one_and_one_and_holds_no_tensors() -> None:
    layer = Normalise()
    assert layer(torch.tensor([0.0, 0.25, 0.5, 1.0])).tolist() == [-1.0, -0.5, 0.0, 1.0]
    assert not layer.state_dict()


@pytest.mark.parametrize(
    ("units", "width", "expected"),
    [(64, 1.0, 64), (64, 0.25, 16), (64, 0.3, 19), (512, 0.3, 154), (64, 0.001, 1), (64, 2.0, 128)],
    # 64·0.3 = 19.2, 512·0.3 = 153.6, 64·0.001 = 0.064 but one channel is the least
)
def test_width_scales_rounds_and_keeps_one(units: int, width: float, expected: int) -> None:
    assert scaled(units, width) == expected


@pytest.mark.parametrize("width", [0.0, -1.0])
def test_width_must_be_positive(width: float) -> None:
    with pytest.raises(ValueError, match=r"got width .*; expected a number above 0"):
        digits_cnn(10, width=width)


class TestDigits:
    def test_parameters_and_macs_at_full_size(self) -> None:
        with torch.device("meta"):
            net, x = digits_cnn(10), torch.zeros(1, 3, 28, 28)
        # Products per output, outputs (side² · channels): 28x28, pooled to 14x14, pooled to 7x7; 128 · 7 · 7 = 6272.
        conv1, conv2, conv3 = 3 * 25 * 64, 64 * 25 * 64, 64 * 25 * 128
        fc1, fc2, fc3 = 6272 * 2048, 2048 * 512, 512 * 10
        biases = 64 + 64 + 128 + 2048 + 512 + 10
        batch_norm = 2 * (64 + 64 + 128 + 2048 + 512)
        assert parameters(net) == conv1 + conv2 + conv3 + fc1 + fc2 + fc3 + biases + batch_norm == 14_219_210
        assert macs(net, x) == conv1 * 28**2 + conv2 * 14**2 + conv3 * 7**2 + fc1 + fc2 + fc3 == 47_767_552

    def test_width_scales_every_layer(self) -> None:
        with torch.device("meta"):
            net = digits_cnn(7, width=0.25, channels=1)
        # 64, 64, 128, 2048, 512 over 4; 32 channels of 7x7 pixels reach fc1; classes and input channels stay.
        shapes = {name: tuple(layer.weight.shape) for name, layer in net.named_children() if hasattr(layer, "weight")}
        assert shapes == {
            "conv1": (16, 1, 5, 5), "bn1": (16,), "conv2": (16, 16, 5, 5), "bn2": (16,), "conv3": (32, 16, 5, 5),
            "bn3": (32,), "fc1": (512, 1568), "bn4": (512,), "fc2": (128, 512), "bn5": (128,), "fc3": (7, 128),
        }  # fmt: skip

    def test_forward_follows_the_table(self, rng: torch.Generator) -> None:
        net = digits_cnn(10, width=1 / 16).eval()
        randomise(net, rng)
        x = torch.rand(2, 3, 28, 28, generator=rng)
        p = net.state_dict()

        def bn(y: Tensor, name: str) -> Tensor:
            side = (1, -1) + (1,) * (y.ndim - 2)
            mean, variance, w, b = (
                p[f"{name}.{key}"].view(side) for key in ("running_mean", "running_var", "weight", "bias")
            )
            return w * (y - mean) / (variance + 1e-5).sqrt() + b

        def conv(y: Tensor, name: str) -> Tensor:
            return F.conv2d(y, p[f"{name}.weight"], p[f"{name}.bias"], stride=1, padding=2)

        y = F.max_pool2d(bn(conv(2 * x - 1, "conv1"), "bn1").relu(), 2)
        y = F.max_pool2d(bn(conv(y, "conv2"), "bn2").relu(), 2)
        y = bn(conv(y, "conv3"), "bn3").relu().flatten(1)
        y = bn(y @ p["fc1.weight"].T + p["fc1.bias"], "bn4").relu()
        y = bn(y @ p["fc2.weight"].T + p["fc2.bias"], "bn5").relu()
        torch.testing.assert_close(net(x), y @ p["fc3.weight"].T + p["fc3.bias"])

    @pytest.mark.parametrize(("image_size", "side"), [(4, 1), (28, 7), (30, 7), (32, 8), (64, 16)])
    def test_first_linear_layer_adapts_to_the_image(self, image_size: int, side: int) -> None:
        with torch.device("meta"):
            net, x = digits_cnn(10, image_size=image_size), torch.zeros(2, 3, image_size, image_size)
        assert net.fc1.in_features == 128 * side * side
        assert net(x).shape == (2, 10)

    def test_too_small_images_are_refused(self) -> None:
        with pytest.raises(ValueError, match=r"got image_size 3; expected at least 4"):
            digits_cnn(10, image_size=3)


class TestAlexNet:
    def test_parameters_and_macs_at_full_size(self) -> None:
        with torch.device("meta"):
            net, x = alexnet_bn(10), torch.zeros(1, 3, 256, 256)
        conv1, conv2, conv3 = 3 * 121 * 64, 64 * 25 * 192, 192 * 9 * 384
        conv4, conv5 = 384 * 9 * 256, 256 * 9 * 256
        fc1, fc2, fc3 = 256 * 36 * 4096, 4096 * 4096, 4096 * 10
        biases = 64 + 192 + 384 + 256 + 256 + 4096 + 4096 + 10
        batch_norm = 2 * (biases - 10)
        weights = conv1 + conv2 + conv3 + conv4 + conv5 + fc1 + fc2 + fc3
        assert parameters(net) == weights + biases + batch_norm == 57_063_498
        # Sides: (256 + 4 - 11) // 4 + 1 = 63, pooled (63 - 3) // 2 + 1 = 31, pooled 15.
        convolutions = conv1 * 63**2 + conv2 * 31**2 + (conv3 + conv4 + conv5) * 15**2
        assert macs(net, x) == convolutions + fc1 + fc2 + fc3 == 923_069_120

    def test_layers_come_in_the_order_of_the_table(self) -> None:
        with torch.device("meta"):
            net = alexnet_bn(10, width=1 / 64)
        convolution, linear = ["Conv2d", "BatchNorm2d", "ReLU"], ["Linear", "BatchNorm1d", "ReLU"]
        assert [type(layer).__name__ for layer in net] == [
            "Normalise", *convolution, "MaxPool2d", *convolution, "MaxPool2d", *convolution, *convolution,
            *convolution, "MaxPool2d", "AdaptiveAvgPool2d", "Flatten", *linear, *linear, "Linear",
        ]  # fmt: skip

    @pytest.mark.parametrize("image_size", [63, 64, 224])
    def test_other_image_sizes_and_widths(self, image_size: int) -> None:
        with torch.device("meta"):
            net, x = alexnet_bn(5, width=1 / 8, image_size=image_size, channels=1), torch.zeros(2, 1, *[image_size] * 2)
        assert net.fc1.in_features == 256 // 8 * 36
        assert net(x).shape == (2, 5)

    def test_too_small_images_are_refused_at_the_size_that_really_fails(self) -> None:
        with pytest.raises(ValueError, match=r"got image_size 62; expected at least 63"):
            alexnet_bn(10, image_size=62)
        with torch.device("meta"), pytest.raises(RuntimeError, match="too small"):
            alexnet_bn(10, width=1 / 64)(torch.zeros(2, 3, 62, 62))


class TestResNet18:
    # Per stage, weights of convolutions (first, three more, 1x1 shortcut) and 2 per channel of each batch norm.
    STAGES = (
        4 * 9 * 64 * 64 + 4 * 2 * 64
        + 9 * 64 * 128 + 3 * 9 * 128 * 128 + 64 * 128 + 5 * 2 * 128
        + 9 * 128 * 256 + 3 * 9 * 256 * 256 + 128 * 256 + 5 * 2 * 256
        + 9 * 256 * 512 + 3 * 9 * 512 * 512 + 256 * 512 + 5 * 2 * 512
    )  # fmt: skip

    def test_parameters_with_the_imagenet_stem(self) -> None:
        with torch.device("meta"):
            net = resnet18(10)
        assert parameters(net) == 49 * 3 * 64 + 2 * 64 + self.STAGES + 512 * 10 + 10 == 11_181_642

    def test_parameters_with_the_small_stem(self) -> None:
        with torch.device("meta"):
            net = resnet18(10, image_size=32)
        assert parameters(net) == 9 * 3 * 64 + 2 * 64 + self.STAGES + 512 * 10 + 10 == 11_173_962

    def test_macs_of_the_imagenet_network(self) -> None:
        with torch.device("meta"):
            net, x = resnet18(1000, image_size=224), torch.zeros(1, 3, 224, 224)
        # Sides 112 after the stem's convolution, then 56, 28, 14, 7. Halving the side and doubling the channels leaves
        # a 3x3 convolution at `block`; the first of a stage has half the inputs, a 1x1 shortcut a ninth of those.
        stem, block = 49 * 3 * 64 * 112**2, 9 * 64 * 64 * 56**2
        stage = block // 2 + 3 * block + block // 18
        assert macs(net, x) == stem + 4 * block + 3 * stage + 512 * 1000 == 1_814_073_344

    @pytest.mark.parametrize(("image_size", "stem", "last"), [(256, 64, 8), (64, 16, 2), (63, 63, 8), (28, 28, 4)])
    def test_small_images_keep_their_size_in_the_stem(self, image_size: int, stem: int, last: int) -> None:
        with torch.device("meta"):
            net, x = resnet18(10, width=1 / 8, image_size=image_size), torch.zeros(1, 3, image_size, image_size)
        assert shape_at(net, "stem", x) == (1, 8, stem, stem)
        assert shape_at(net, "stage4", x) == (1, 64, last, last)  # three halvings, rounded up by the padding
        assert net(x).shape == (1, 10)

    def test_a_block_without_residual_is_the_relu_of_its_input(self, rng: torch.Generator) -> None:
        block = Block(4, 4, stride=1)
        nn.init.zeros_(block.bn2.weight)  # bn2's bias is 0 already
        x = torch.randn(3, 4, 5, 5, generator=rng)
        assert torch.equal(block(x), x.clamp(min=0))

    def test_a_block_without_residual_projects_when_the_shape_changes(self, rng: torch.Generator) -> None:
        block = Block(2, 3, stride=2).eval()
        nn.init.zeros_(block.bn2.weight)
        x = torch.randn(2, 2, 6, 6, generator=rng)
        # Shortcut: every second pixel through the 1x1 weights, over sqrt(1 + 1e-5) by the initial statistics 0 and 1.
        projected = torch.einsum("oi,nihw->nohw", block.shortcut[0].weight[:, :, 0, 0], x[:, :, ::2, ::2])
        torch.testing.assert_close(block(x), (projected / (1 + 1e-5) ** 0.5).relu())

    def test_a_residual_is_added(self) -> None:
        block = Block(1, 1, stride=1).eval()
        for conv in (block.conv1, block.conv2):
            nn.init.dirac_(conv.weight)  # the identity
        x = torch.tensor([[[[2.0, -3.0]]]])
        # relu(x) = (2, 0) comes back through two batch norms, each over s = sqrt(1 + 1e-5); relu(x + that).
        s = (1 + 1e-5) ** 0.5
        torch.testing.assert_close(block(x), torch.tensor([[[[2 + 2 / s**2, 0.0]]]]))


def randomise(net: nn.Module, rng: torch.Generator) -> None:
    """Weights in [-0.5, 0.5), statistics in [0.5, 1.5), so that no two layers are alike."""
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(torch.rand(parameter.shape, generator=rng) - 0.5)
        for buffer in net.buffers():
            if buffer.is_floating_point():
                buffer.copy_(torch.rand(buffer.shape, generator=rng) + 0.5)


@pytest.fixture
def rng() -> torch.Generator:
    return torch.Generator().manual_seed(0)
