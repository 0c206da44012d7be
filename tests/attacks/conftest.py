"""A small convolutional network that really classifies: scikit-learn's 8 × 8 handwritten digits."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F


class Trained(NamedTuple):
    net: nn.Module
    x: Tensor
    y: Tensor


def small_net(channels: int = 12) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, channels, 3, padding=1),
        nn.BatchNorm2d(channels),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(channels, 2 * channels, 3, padding=1),
        nn.BatchNorm2d(2 * channels),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(2 * channels * 16, 10),
    )


@pytest.fixture(scope="session")
def trained() -> Trained:
    """The network in eval mode, and 400 test images that it has not seen."""
    images, labels = load_digits(return_X_y=True)
    x = torch.from_numpy(images).float().div(16).reshape(-1, 1, 8, 8)
    y = torch.from_numpy(labels)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = small_net()
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    train, test = order[400:], order[:400]
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    for _ in range(8):
        for batch in train.split(64):
            optimizer.zero_grad()
            F.cross_entropy(net(x[batch]), y[batch]).backward()
            optimizer.step()
    optimizer.zero_grad()
    net.eval()
    accuracy = (net(x[test]).argmax(1) == y[test]).float().mean()
    assert accuracy > 0.95, f"the toy network must be worth attacking; its accuracy is {accuracy:.3f}"
    return Trained(net, x[test], y[test])
