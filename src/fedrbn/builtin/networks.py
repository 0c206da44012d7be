"""The networks that `model.name` can name: each a factory (classes, width, image_size, channels) -> network."""

from __future__ import annotations

from collections.abc import Mapping

from fedrbn.builtin import BuiltIn

NETWORKS: Mapping[str, BuiltIn] = {
    "digits": BuiltIn("fedrbn.nets.digits:digits_cnn", "the paper's convolutional network for digits"),
    "alexnet": BuiltIn("fedrbn.nets.alexnet:alexnet_bn", "AlexNet with batch norm, for photographs"),
    "resnet18": BuiltIn("fedrbn.nets.resnet:resnet18", "ResNet-18"),
}
