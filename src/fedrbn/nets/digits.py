"""The network for Digits: three convolutions and three linear layers, with batch norm after all except the last."""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn

from fedrbn.errors import NetworkError


class Normalise(nn.Module):
    """Scales pixels from [0, 1] to the network's range: (x − 0.5) / 0.5, in [−1, 1].

    It is the first layer of every network here, so that data, attacks and ε stay in pixel units.
    """

    def forward(self, x: Tensor) -> Tensor:
        """The scaled pixels."""
        return (x - 0.5) / 0.5


def scaled(units: int, width: float) -> int:
    """The number of channels or hidden units of a layer of `units` at this width: rounded, at least one."""
    if width <= 0:
        raise NetworkError(
            f"got width {width}; expected a number above 0. Use 1 for the paper's network, 0.25 for tests."
        )
    return max(1, round(units * width))


def digits_cnn(classes: int, width: float = 1.0, image_size: int = 28, channels: int = 3) -> nn.Sequential:
    """The Digits network of the paper, with the layer names of its table; 14.2 M parameters for 28x28 images.

    `bn4` is printed as two-dimensional, but it follows a linear layer, so it is one-dimensional like `bn5`.
    """
    side = image_size // 4  # two pooling layers, each halves and rounds down
    if side < 1:
        raise NetworkError(
            f"got image_size {image_size}; expected at least 4, because the Digits network halves images twice. "
            "Raise data.image_size."
        )
    narrow, wide, hidden, last = (scaled(units, width) for units in (64, 128, 2048, 512))
    return nn.Sequential(
        OrderedDict[str, nn.Module](
            normalise=Normalise(),
            conv1=nn.Conv2d(channels, narrow, kernel_size=5, padding=2),
            bn1=nn.BatchNorm2d(narrow),
            relu1=nn.ReLU(),
            pool1=nn.MaxPool2d(kernel_size=2),
            conv2=nn.Conv2d(narrow, narrow, kernel_size=5, padding=2),
            bn2=nn.BatchNorm2d(narrow),
            relu2=nn.ReLU(),
            pool2=nn.MaxPool2d(kernel_size=2),
            conv3=nn.Conv2d(narrow, wide, kernel_size=5, padding=2),
            bn3=nn.BatchNorm2d(wide),
            relu3=nn.ReLU(),
            flatten=nn.Flatten(),
            fc1=nn.Linear(wide * side**2, hidden),
            bn4=nn.BatchNorm1d(hidden),
            relu4=nn.ReLU(),
            fc2=nn.Linear(hidden, last),
            bn5=nn.BatchNorm1d(last),
            relu5=nn.ReLU(),
            fc3=nn.Linear(last, classes),
        )
    )
