"""The network for DomainNet: AlexNet with batch norm after every layer except the last, and no dropout."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from fedrbn.errors import NetworkError
from fedrbn.nets.digits import Normalise, scaled

_SMALLEST = 63
"""Pixels for which the last pooling still has a 3x3 window: 63 -> conv1 15 -> pool1 7 -> pool2 3 -> pool5 1."""


def alexnet_bn(classes: int, width: float = 1.0, image_size: int = 256, channels: int = 3) -> nn.Sequential:
    """The DomainNet network of the paper, with the layer names of its table; 57.1 M parameters for 10 classes.

    The average pool gives the linear layers 6x6 for any image size; sizes below 63 are an error.
    """
    if image_size < _SMALLEST:
        raise NetworkError(
            f"got image_size {image_size}; expected at least {_SMALLEST}, because AlexNet's pooling layers leave "
            "no pixels of smaller images. Raise data.image_size, or use the network 'digits' or 'resnet18'."
        )
    first, second, third, fourth, hidden = (scaled(units, width) for units in (64, 192, 384, 256, 4096))
    return nn.Sequential(
        OrderedDict[str, nn.Module](
            normalise=Normalise(),
            conv1=nn.Conv2d(channels, first, kernel_size=11, stride=4, padding=2),
            bn1=nn.BatchNorm2d(first),
            relu1=nn.ReLU(),
            pool1=nn.MaxPool2d(kernel_size=3, stride=2),
            conv2=nn.Conv2d(first, second, kernel_size=5, padding=2),
            bn2=nn.BatchNorm2d(second),
            relu2=nn.ReLU(),
            pool2=nn.MaxPool2d(kernel_size=3, stride=2),
            conv3=nn.Conv2d(second, third, kernel_size=3, padding=1),
            bn3=nn.BatchNorm2d(third),
            relu3=nn.ReLU(),
            conv4=nn.Conv2d(third, fourth, kernel_size=3, padding=1),
            bn4=nn.BatchNorm2d(fourth),
            relu4=nn.ReLU(),
            conv5=nn.Conv2d(fourth, fourth, kernel_size=3, padding=1),
            bn5=nn.BatchNorm2d(fourth),
            relu5=nn.ReLU(),
            pool5=nn.MaxPool2d(kernel_size=3, stride=2),
            avgpool=nn.AdaptiveAvgPool2d(6),
            flatten=nn.Flatten(),
            fc1=nn.Linear(fourth * 6 * 6, hidden),
            bn6=nn.BatchNorm1d(hidden),
            relu6=nn.ReLU(),
            fc2=nn.Linear(hidden, hidden),
            bn7=nn.BatchNorm1d(hidden),
            relu7=nn.ReLU(),
            fc3=nn.Linear(hidden, classes),
        )
    )
