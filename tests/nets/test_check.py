"""One pass before training: what a network must do, and how it is told what it does not."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fedrbn.errors import NetworkError
from fedrbn.nets.check import check_forward
from fedrbn.nets.dual_bn import dual, single

X = torch.rand(12, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def network(outputs: int, inputs: int = 3) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, 4, 3), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, outputs)
    )


class Broken(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(3)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x).view(len(x), 7)  # 3 · 32 · 32 numbers do not fit


class Gives(nn.Module):
    """Gives this number as every logit."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(3)
        self.value = value

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x)[:, :2, 0, 0] * 0 + self.value


class Pair(Gives):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        return super().forward(x), x


def test_a_network_with_a_logit_for_every_class_passes_and_is_not_changed() -> None:
    net = dual(network(2))
    before = {name: value.clone() for name, value in net.state_dict().items()}
    random = torch.random.get_rng_state()
    check_forward(net, X, classes=2)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert torch.equal(torch.random.get_rng_state(), random)


@pytest.mark.parametrize("outputs", [1000, 10, 5])
def test_another_number_of_outputs_is_refused(outputs: int) -> None:
    message = rf"your network gives \[12, {outputs}\] for \[12, 3, 32, 32\]; expected logits \[12, 7\].*num_classes"
    with pytest.raises(NetworkError, match=message):
        check_forward(single(network(outputs)), X, classes=7)


def test_the_image_size_that_a_network_takes_is_named() -> None:
    # A stride of 8 leaves 4 x 4 of 32 pixels, 8 x 8 of 64 and 12 x 12 of 96: enough for a window of 9 only from 96 on.
    convolution, norm = nn.Conv2d(3, 4, 8, stride=8), nn.BatchNorm2d(4)
    pooled = nn.Sequential(convolution, norm, nn.AvgPool2d(9), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))
    message = r"your network failed on \[12, 3, 32, 32\]: .*It takes images of 96 x 96 pixels: set data.image_size = 96"
    with pytest.raises(NetworkError, match=message):
        check_forward(dual(pooled), X, classes=2)


def test_where_no_size_helps_none_is_named() -> None:
    with pytest.raises(NetworkError, match=r"return logits\. Correct the network\.$"):
        check_forward(dual(Broken()), X, classes=2)


@pytest.mark.parametrize(
    ("net", "message"),
    [
        (Broken(), r"your network failed on \[12, 3, 32, 32\]: RuntimeError: shape .* \(test_check.py, line \d+\)\. "),
        (network(2, inputs=1), r"your network failed on \[12, 3, 32, 32\]: RuntimeError: .*channels"),
        (Gives(float("nan")), r"logits for \[12, 3, 32, 32\] that are not all finite"),
        (Gives(float("inf")), r"not all finite"),
        (Pair(0.0), r"your network gives tuple for \[12, 3, 32, 32\]; .*\[12, 2\]\. Return only the logits\.$"),
    ],
    ids=["fails", "channels", "nan", "inf", "tuple"],
)
def test_what_cannot_train_is_refused_in_one_message(net: nn.Module, message: str) -> None:
    with pytest.raises(NetworkError, match=message) as caught:
        check_forward(dual(net), X, classes=2)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None  # no traceback of ours behind it
