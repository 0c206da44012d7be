"""The check-list finds every planted fault of a network and of an attack, and passes honest evaluations."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from fedrbn import checklist
from fedrbn.attacks import PGD, Corruption, LocalSearch, Logits, LogitsAttack, Loss, Margin, Oblivious, Untargeted
from fedrbn.attacks.autoattack import square
from fedrbn.checklist import IMAGES, Check, Evidence, judge, most, shares
from fedrbn.data.digits_mini import digits_mini
from fedrbn.data.samples import Samples
from fedrbn.evaluation import Accuracy, logits_of
from fedrbn.federated.objectives import Adversarial
from fedrbn.nets.dual_bn import DualBatchNorm, DualNet, dual
from fedrbn.types import Answers, Branch, Tensors

EPS = 0.1
SIDE = 8
CLASSES = 10
HONEST = Untargeted(PGD(eps=EPS, steps=7, step_size=EPS / 4))
QUERIES = 200
"""Fewer than evaluations use: these networks have 8 × 8 pixels."""


def random() -> Generator:
    return torch.Generator().manual_seed(3)


@pytest.fixture(scope="module")
def digits() -> tuple[Samples, Samples]:
    """Handwritten digits to train and to test with."""
    plain = digits_mini(SIDE).domains[0]
    return plain.train, plain.test


def trained(train: Samples, attack: PGD) -> DualNet:
    torch.manual_seed(1)
    layers = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * SIDE * SIDE, CLASSES)
    )
    net, order = dual(layers), torch.Generator().manual_seed(1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    for _ in range(150):
        x, y = train.pixels(torch.randint(0, len(train), (64,), generator=order))
        optimizer.zero_grad()
        Adversarial(attack)(net.train(), x, y, order)
        optimizer.step()
    return net.eval()


@pytest.fixture(scope="module")
def robust(digits: tuple[Samples, Samples]) -> DualNet:
    """A network trained adversarially, both branches."""
    return trained(digits[0], PGD(eps=EPS, steps=3, step_size=EPS / 2))


@pytest.fixture(scope="module")
def standard(digits: tuple[Samples, Samples]) -> DualNet:
    """A network trained without an adversary to speak of."""
    return trained(digits[0], PGD(eps=1e-6, steps=1, step_size=1e-6))


def measured(net: DualNet, test: Samples, deployment: Branch, attacks: checklist.Attacks) -> Tensors:
    """The answers to the check-list's own questions."""
    found: Tensors = {}
    for question in checklist.questions(deployment, attacks, EPS, IMAGES, QUERIES):
        found |= question(net, test, random())
    return found


def printed(net: DualNet, test: Samples, deployment: Branch, attack: LogitsAttack) -> Tensors:
    """The answers that a robust accuracy is made of."""
    return Accuracy(deployment, "a", attack, radius=checklist.radius(attack, EPS))(net, test, random())


def verdicts(answers: Tensors, attack: LogitsAttack, deployment: Branch = Branch.NOISED) -> dict[str, Check]:
    evidence = Evidence([Answers("one", 0, answers)], {"one": deployment.value})
    return {check.name: check for check in judge(evidence, {"ra": ("a", attack)}, EPS, CLASSES, IMAGES)}


def examined(
    net: DualNet, test: Samples, attack: LogitsAttack = HONEST, deployment: Branch = Branch.NOISED
) -> dict[str, Check]:
    answers = printed(net, test, deployment, attack) | measured(net, test, deployment, {"a": attack})
    return verdicts(answers, attack, deployment)


def failed(checks: dict[str, Check]) -> set[str]:
    return {name for name, check in checks.items() if check.passed is False}


class Tampered(nn.Module):
    """Passes images on as they are, and changes the gradient on its way back."""

    def __init__(self, change: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.change = change

    def forward(self, x: Tensor) -> Tensor:
        passed = x * 1
        if passed.requires_grad:
            passed.register_hook(self.change)
        return passed


class Lambda(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def noise_of_the_input(z: Tensor) -> Tensor:
    """Looks random, but is a function of the logits: sin of a million times their value."""
    return 4 * torch.sin(1e6 * z.detach())


def left_half_lost(gradient: Tensor) -> Tensor:
    return torch.cat([torch.zeros_like(gradient[..., : SIDE // 2]), gradient[..., SIDE // 2 :]], dim=-1)


BEFORE: dict[str, nn.Module] = {
    "detached input": Lambda(lambda x: x.detach() + 0 * x),
    "rounded pixels": Lambda(lambda x: torch.round(8 * x) / 8),
    "opposite gradients": Tampered(lambda g: -g),
    "shifted gradients": Tampered(lambda g: g.roll(2, -1)),
    "averaged gradients": Tampered(lambda g: F.avg_pool2d(g, 3, stride=1, padding=1)),
    "gradients of half the image": Tampered(left_half_lost),
    "noisy gradients": Tampered(lambda g: g + 3 * g.std() * torch.randn_like(g)),
    "dropout of pixels in test": Lambda(lambda x: F.dropout(x, 0.1, training=True)),
}
"""Faults of networks that sit before the first layer."""

AFTER: dict[str, nn.Module] = {
    "saturated logits": Lambda(lambda z: 1e4 * z),
    "scaled and clamped logits": Lambda(lambda z: (30 * z).clamp(-60, 60)),
    "rounded logits": Lambda(torch.round),
    "noise seeded by the input": Lambda(lambda z: z + noise_of_the_input(z)),
    "noise in test": Lambda(lambda z: z + torch.randn_like(z)),
    "low temperature": Lambda(lambda z: z / 0.01),
    "only the class": Lambda(lambda z: F.one_hot(z.argmax(1), CLASSES) + 0 * z),
    "dead ReLU": Lambda(lambda z: z.detach() + F.relu(z - 1e3)),
}
"""Faults of networks that sit after the logits."""


def with_fault(net: DualNet, name: str) -> DualNet:
    layers = copy.deepcopy(net.network)
    fault = BEFORE.get(name) or AFTER[name]
    return DualNet(nn.Sequential(fault, layers) if name in BEFORE else nn.Sequential(layers, fault)).eval()


def unchanged(logits: Logits, x: Tensor, y: Tensor, generator: Generator) -> Tensor:
    return x


def smaller(logits: Logits, x: Tensor, y: Tensor, generator: Generator) -> Tensor:
    return Untargeted(PGD(eps=EPS / 4, steps=7, step_size=EPS / 16))(logits, x, y, generator)


def downhill(loss: Loss, x: Tensor, generator: Generator) -> Tensor:
    return HONEST.attack(lambda z: -loss(z), x, generator)


def start_only(logits: Logits, x: Tensor, y: Tensor, generator: Generator) -> Tensor:
    return (x + EPS * (2 * torch.rand(x.shape, generator=generator) - 1)).clamp(0, 1)


def blurred(logits: Logits, x: Tensor, y: Tensor, generator: Generator) -> Tensor:
    return x + (Corruption("gaussian-blur", 5)(x, generator) - x).clamp(-EPS, EPS)


def through_another_branch(net: DualNet) -> LogitsAttack:
    """PGD on a branch that takes all channels for far below their mean: ReLU lets nothing and no gradient through."""
    other = copy.deepcopy(net)
    for module in other.modules():
        if isinstance(module, DualBatchNorm) and module.clean.running_mean is not None:
            module.clean.running_mean.fill_(100.0)
    surface = logits_of(other, Branch.CLEAN)
    return lambda logits, x, y, generator: HONEST(surface, x, y, generator)


ATTACKS: dict[str, LogitsAttack | Callable[[DualNet], LogitsAttack]] = {
    "returns its input": unchanged,
    "tiny step": Untargeted(PGD(eps=EPS, steps=1, step_size=1e-4)),
    "one step": Untargeted(PGD(eps=EPS, steps=1, step_size=EPS / 4, random_start=False)),
    "ε of 0": Untargeted(PGD(eps=0, steps=7, step_size=EPS / 4)),
    "smaller ε than stated": smaller,
    "lowers the loss": Untargeted(downhill),
    "clips to another box": Untargeted(PGD(eps=EPS, steps=7, step_size=EPS / 4, box=(0.5, 1.0))),
    "never leaves its start": start_only,
    "blur in the place of an attack": blurred,
}


@pytest.fixture(scope="module")
def of_robust(robust: DualNet, digits: tuple[Samples, Samples]) -> Tensors:
    """What the check-list measures of the robust network, whatever the attack."""
    return measured(robust, digits[1], Branch.NOISED, {"a": unchanged})


@pytest.mark.parametrize("deployment", list(Branch))
@pytest.mark.parametrize("kind", ["robust", "standard"])
def test_honest_evaluations_pass(
    kind: str, deployment: Branch, request: pytest.FixtureRequest, digits: tuple[Samples, Samples]
) -> None:
    checks = examined(request.getfixturevalue(kind), digits[1], deployment=deployment)
    assert all(check.passed for check in checks.values()), [c for c in checks.values() if not c.passed]
    assert len(checks) == 12


def test_the_robust_network_is_robust(of_robust: Tensors, robust: DualNet, digits: tuple[Samples, Samples]) -> None:
    # Otherwise there is nothing that a fault could flatter.
    right = printed(robust, digits[1], Branch.NOISED, HONEST)
    assert right["clean@noised"].double().mean() > 0.85
    assert 0.2 < right["a@noised"].double().mean() < 0.75


@pytest.mark.parametrize("name", [*BEFORE, *AFTER])
def test_every_fault_of_a_network_is_found(name: str, robust: DualNet, digits: tuple[Samples, Samples]) -> None:
    torch.manual_seed(1)
    assert failed(examined(with_fault(robust, name), digits[1]))


@pytest.mark.parametrize("name", ATTACKS)
def test_every_fault_of_an_attack_is_found(
    name: str, robust: DualNet, of_robust: Tensors, digits: tuple[Samples, Samples]
) -> None:
    attack = ATTACKS[name]
    found = failed(verdicts(printed(robust, digits[1], Branch.NOISED, attack) | of_robust, attack))
    assert found
