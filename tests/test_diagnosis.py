"""The check-list passes on an honestly trained network and fails on each planted fault."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from fedrbn.attacks import PGD
from fedrbn.data.samples import Samples
from fedrbn.diagnosis import Check, Diagnosis, judge
from fedrbn.federated.objectives import Adversarial
from fedrbn.nets.dual_bn import DualBatchNorm, DualNet, dual
from fedrbn.types import Answers, Branch

CLASSES = 4
ATTACK = PGD(eps=0.1, steps=5, step_size=0.04)


def quadrants(count: int, seed: int) -> Samples:
    """Noisy 8 × 8 images in which one quadrant is brighter; the class is which."""
    random = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % CLASSES
    images = torch.randint(40, 150, (count, 1, 8, 8), generator=random)
    for image, label in zip(images, labels.tolist(), strict=True):
        row, column = divmod(label, 2)
        image[0, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4] += 60
    return Samples(images.to(torch.uint8), labels)


@pytest.fixture(scope="module")
def honest() -> DualNet:
    """A small network trained adversarially, both branches."""
    torch.manual_seed(1)
    layers = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(128, 4)
    )
    net, samples = dual(layers), quadrants(256, seed=1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    random = torch.Generator().manual_seed(1)
    for step in range(60):
        x, y = samples.pixels(torch.arange(32) + 32 * (step % 8))
        optimizer.zero_grad()
        Adversarial(ATTACK)(net.train(), x, y, random)
        optimizer.step()
    return net.eval()


def failed(net: DualNet, diagnosis: Diagnosis) -> list[str]:
    answers = diagnosis(net, quadrants(120, seed=2), torch.Generator().manual_seed(3))
    return [check.name for check in judge([Answers("one", 0, answers)], CLASSES) if check.passed is False]


def check_list(deployment: Branch = Branch.NOISED) -> Diagnosis:
    return Diagnosis(deployment, ATTACK, samples=120)


def behind(net: DualNet, module: nn.Module) -> DualNet:
    """The network with a module after its logits."""
    return DualNet(nn.Sequential(copy.deepcopy(net.network), module)).eval()


class Lambda(nn.Module):
    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


@pytest.mark.parametrize("deployment", list(Branch))
def test_an_honest_network_passes(honest: DualNet, deployment: Branch) -> None:
    assert failed(honest, check_list(deployment)) == []


def test_saturated_logits_are_caught(honest: DualNet) -> None:
    # Logits 10,000 times as large: softmax is exactly 0 or 1 in float32, so correct samples have no gradient at all.
    names = failed(behind(honest, Lambda(lambda z: 1e4 * z)), check_list())
    assert "gradients do not vanish" in names
    assert "without a bound (ε = 1) the attack reaches chance" in names


def test_quantised_logits_are_caught(honest: DualNet) -> None:
    # Rounding has zero gradient everywhere: the attack stands still, but black-box search does not need a gradient.
    names = failed(behind(honest, Lambda(torch.round)), check_list())
    assert "gradients do not vanish" in names
    assert "black-box search does not beat the gradient attack" in names


def test_logits_that_change_from_call_to_call_are_caught(honest: DualNet) -> None:
    source = torch.Generator().manual_seed(1)
    noisy = behind(honest, Lambda(lambda z: z + torch.randn(z.shape, generator=source)))
    assert "the same input gives the same logits" in failed(noisy, check_list())


def test_an_attack_through_a_branch_that_does_not_predict_is_caught(honest: DualNet) -> None:
    # BN_a takes all channels for far below their mean, so ReLU lets nothing and no gradient through; BN_c predicts.
    net = copy.deepcopy(honest)
    for module in net.modules():
        if isinstance(module, DualBatchNorm) and module.noised is not None:
            module.noised.running_mean.fill_(100.0)
    mismatched = Diagnosis(Branch.CLEAN, ATTACK, through=Branch.NOISED, samples=120)
    assert "an attack through clean is not stronger" in failed(net, mismatched)
    assert "an attack through clean is not stronger" not in failed(net, replace(mismatched, through=None))


def test_an_attack_that_hardly_moves_is_caught(honest: DualNet) -> None:
    weak = PGD(eps=0.1, steps=1, step_size=1e-6, random_start=False)
    names = failed(honest, Diagnosis(Branch.NOISED, weak, samples=120))
    assert "black-box search does not beat the gradient attack" in names


def test_an_attack_outside_of_the_ball_is_caught(honest: DualNet) -> None:
    # The box [0.5, 1] of the authors' released code lifts dark pixels far out of the ball.
    outside = replace(ATTACK, box=(0.5, 1.0))
    names = failed(honest, Diagnosis(Branch.NOISED, outside, samples=120))
    assert "adversarial images stay in [0, 1] and in the ball" in names


MEASURED = {
    "clean": 90, "noise": 88, "attacked": 40, "more steps": 38, "larger ε": 20, "ε = 1": 0, "black box": 60,
    "within bounds": 100, "same logits": 100, "gradient": 100, "through clean": 45, "through clean and noised": 42,
}  # fmt: skip
"""Samples of 100 that are right (or fine), as an honest evaluation measures them."""


def judged(**changed: int) -> dict[str, Check]:
    values = MEASURED | {name.replace("_", " "): count for name, count in changed.items()}
    correct = {f"check {name}": torch.arange(100) < count for name, count in values.items()}
    return {check.name: check for check in judge([Answers("one", 0, correct)], classes=10)}


def test_judging_honest_measurements() -> None:
    assert all(check.passed for check in judged().values())


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({"clean": 25, "attacked": 60}, "robust accuracy is not above clean accuracy"),
        ({"noise": 10}, "the attack hurts at least as much as random noise of size ε"),
        ({"more_steps": 75}, "more steps do not raise robust accuracy"),
        ({"larger_ε": 80}, "a larger ε does not raise robust accuracy"),
        ({"black_box": 5}, "black-box search does not beat the gradient attack"),
        ({"ε_=_1": 30}, "without a bound (ε = 1) the attack reaches chance"),
        ({"within_bounds": 99}, "adversarial images stay in [0, 1] and in the ball"),
        ({"same_logits": 99}, "the same input gives the same logits"),
        ({"gradient": 89}, "gradients do not vanish"),
        ({"through_clean": 5}, "an attack through clean is not stronger"),
    ],
)
def test_each_sign_is_judged_on_its_own(changed: dict[str, int], name: str) -> None:
    assert judged(**changed)[name].passed is False


def test_chance_is_allowed_for() -> None:
    # 40 against 36 of 100: they disagree on 4 samples, three standard errors are 3·√4/100 = 6 points, above the 4.
    assert judged(black_box=36)["black-box search does not beat the gradient attack"].passed
    # 40 against 30: 10 disagreements, 3·√10/100 = 9.5 points, below the 10.
    assert not judged(black_box=30)["black-box search does not beat the gradient attack"].passed
    # Chance for ten classes on 100 samples: 0.1 + 3·√(0.1·0.9/100) = 0.19.
    assert judged(**{"ε_=_1": 19})["without a bound (ε = 1) the attack reaches chance"].passed
    assert not judged(**{"ε_=_1": 20})["without a bound (ε = 1) the attack reaches chance"].passed


def test_a_missing_black_box_attack_is_said_not_failed() -> None:
    values = {name: count for name, count in MEASURED.items() if name != "black box"}
    correct = {f"check {name}": torch.arange(100) < count for name, count in values.items()}
    checks = {check.name: check for check in judge([Answers("one", 0, correct)], classes=10)}
    assert checks["black-box search does not beat the gradient attack"].passed is None
