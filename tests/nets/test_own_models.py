"""Networks that nobody here wrote, from packages that know nothing of us, converted and trained by type."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from fedrbn.attacks import PGD
from fedrbn.federated.objectives import Adversarial, Calibrated, Objective
from fedrbn.nets.dual_bn import DualNet, dual, plain, single
from fedrbn.nets.fold import fold
from fedrbn.types import Branch, Stats
from nets.lived_in import lived_in

pytorchcv = pytest.importorskip("pytorchcv.model_provider")
monai = pytest.importorskip("monai.networks.nets")


@dataclass(frozen=True)
class Foreign:
    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    folds: bool = True
    """Whether every batch norm follows a layer (pre-activation networks have some that do not)."""


def from_pytorchcv(name: str) -> Callable[[], nn.Module]:
    return lambda: pytorchcv.get_model(name, pretrained=False)


FAST = {
    "resnet20": Foreign(from_pytorchcv("resnet20_cifar10"), (3, 32, 32)),
    "densenet 2-d": Foreign(
        lambda: monai.DenseNet(2, 3, 5, init_features=8, growth_rate=4, block_config=(2, 2)), (3, 32, 32), folds=False
    ),
    "resnet10 1-d": Foreign(lambda: monai.ResNet("basic", [1, 1, 1, 1], [8, 16, 16, 32], 1, 2, num_classes=5), (2, 64)),
    "resnet10 3-d": Foreign(
        lambda: monai.ResNet("basic", [1, 1, 1, 1], [8, 16, 16, 32], 3, 1, num_classes=5), (1, 16, 16, 16)
    ),
}
SLOW = {
    "mobilenetv2": Foreign(from_pytorchcv("mobilenetv2_wd4"), (3, 224, 224)),
    "efficientnet": Foreign(from_pytorchcv("efficientnet_b0"), (3, 64, 64)),
    "efficientnet of monai": Foreign(
        lambda: monai.EfficientNetBN("efficientnet-b0", pretrained=False, num_classes=5), (3, 64, 64)
    ),
    "densenet40": Foreign(from_pytorchcv("densenet40_k12_cifar10"), (3, 32, 32), folds=False),
    "resnet18": Foreign(lambda: monai.resnet18(pretrained=False, n_input_channels=1, num_classes=5), (1, 16, 16, 16)),
}


@pytest.fixture(
    params=[*FAST.items(), *(pytest.param(item, marks=pytest.mark.slow) for item in SLOW.items())],
    ids=[*FAST, *SLOW],
)
def foreign(request: pytest.FixtureRequest) -> Foreign:
    found: Foreign = request.param[1]
    return found


def network(foreign: Foreign) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return lived_in(foreign.make())


def batch(foreign: Foreign, images: int = 4) -> Tensor:
    return torch.rand(images, *foreign.shape, generator=torch.Generator().manual_seed(1))


def test_conversion_keeps_the_logits_bit_for_bit(foreign: Foreign) -> None:
    net, x = network(foreign), batch(foreign)
    with torch.no_grad():
        expected = net(x)
        for converted in (dual(net).eval(), single(net).eval()):
            for branch in Branch:
                assert torch.equal(converted(x, branch), expected)
                assert torch.equal(plain(converted, branch)(x), expected)


def test_joined_pass_equals_two_passes(foreign: Foreign) -> None:
    net, x = dual(network(foreign)), batch(foreign)
    y = x.flip(0)
    lived_in(net.network, seed=2)  # now the branches differ
    with torch.no_grad():
        clean, noised = net.paired(x, y)
        expected = net(x, Branch.CLEAN), net(y, Branch.NOISED)
    assert not torch.allclose(net(y, Branch.CLEAN), expected[1], rtol=1e-3)
    for got, wanted in zip((clean, noised), expected, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5 * max(1.0, float(wanted.abs().max())))


@pytest.mark.parametrize(
    ("objective", "moved"),
    [(Adversarial(PGD(steps=1)), {Branch.CLEAN, Branch.NOISED}), (Calibrated(0.5), {Branch.CLEAN})],
    ids=["AT", "PNC"],
)
def test_a_training_step(foreign: Foreign, objective: Objective, moved: set[Branch]) -> None:
    net, x = dual(network(foreign)).train(), batch(foreign)
    before = {branch: statistics(net, branch) for branch in Branch}
    weight = next(net.parameters()).detach().clone()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with torch.random.fork_rng(devices=[]):  # dropout, where a network has it
        loss = objective(net, x, torch.arange(len(x)) % 2, torch.Generator().manual_seed(1))
    optimizer.step()
    assert loss > 0
    assert not torch.equal(next(net.parameters()), weight)
    for branch in Branch:
        assert torch.equal(before[branch], statistics(net, branch)) == (branch not in moved)


def statistics(net: DualNet, branch: Branch) -> Tensor:
    return torch.cat([b.flatten() for name, b in net.named_buffers() if f".{branch.value}.running" in name])


def test_folding_keeps_the_function(foreign: Foreign) -> None:
    net, x = network(foreign), batch(foreign)
    result = fold(net, x[:2])
    assert bool(result.kept) != foreign.folds
    with torch.no_grad():
        expected, got = net(x), result.net(x)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=2e-5 * max(1.0, float(expected.abs().max())))


def test_without_batch_norm_the_message_says_what_can_be_done() -> None:
    net = from_pytorchcv("squeezenet_v1_1")()
    with pytest.raises(ValueError, match=r"without a batch-norm layer.*statistics.*fatavg"):
        dual(net)


def test_without_batch_norm_the_baselines_run() -> None:
    net = single(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)))
    x = torch.rand(2, 1, 2, 2, generator=torch.Generator().manual_seed(1))
    assert net(x, Branch.NOISED, Stats.BATCH).shape == (2, 3)
