"""ResNet18 of He et al. (2016): four stages of two residual blocks, batch norm after every convolution."""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn
from torch.nn import functional as F

from fedrbn.nets.digits import Normalise, scaled

_LARGE = 64
"""Images with at least this many pixels per side are large enough for the stem that divides their side by four."""


class Block(nn.Module):
    """y = relu(x' + BN(conv(relu(BN(conv(x)))))), where x' is x, or its 1x1 projection if the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, kernel_size=3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, kernel_size=3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, kernel_size=1, stride=stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        """The block's output, `stride` times smaller than its input."""
        residual = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(residual + self.shortcut(x))


def resnet18(classes: int, width: float = 1.0, image_size: int = 256, channels: int = 3) -> nn.Sequential:
    """ResNet18 with batch norm; 11.18 M parameters for 10 classes.

    Images of 64 pixels and more use the ImageNet stem (7x7 convolution and pooling, which divide the side by four);
    smaller ones use a 3x3 convolution that keeps their size.
    """
    one, two, three, four = (scaled(units, width) for units in (64, 128, 256, 512))
    return nn.Sequential(
        OrderedDict[str, nn.Module](
            normalise=Normalise(),
            stem=_stem(channels, one, large=image_size >= _LARGE),
            stage1=_stage(one, one, stride=1),
            stage2=_stage(one, two, stride=2),
            stage3=_stage(two, three, stride=2),
            stage4=_stage(three, four, stride=2),
            avgpool=nn.AdaptiveAvgPool2d(1),
            flatten=nn.Flatten(),
            fc=nn.Linear(four, classes),
        )
    )


def _stem(channels: int, outputs: int, *, large: bool) -> nn.Sequential:
    kernel, stride = (7, 2) if large else (3, 1)
    conv = nn.Conv2d(channels, outputs, kernel, stride, padding=kernel // 2, bias=False)
    pool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1) if large else nn.Identity()
    return nn.Sequential(OrderedDict[str, nn.Module](conv=conv, bn=nn.BatchNorm2d(outputs), relu=nn.ReLU(), pool=pool))


def _stage(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    return nn.Sequential(Block(inputs, outputs, stride), Block(outputs, outputs, stride=1))
