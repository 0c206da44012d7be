"""Which gradients an objective adds, which statistics it moves, and how many passes it costs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from federated.tiny import network, samples
from fedrbn.attacks import PGD
from fedrbn.attacks.protocols import Loss
from fedrbn.federated.objectives import Adversarial, Calibrated, OneStep, Standard, clamp, evaluating
from fedrbn.nets.dual_bn import DualNet, dual, plain
from fedrbn.nets.state import load, tensors
from fedrbn.types import Branch, Tensors

X, Y = samples(8, seed=3).pixels(slice(None))
BN_C = [f"network.2.clean.{name}" for name in ("running_mean", "running_var", "num_batches_tracked")]
BN_A = [f"network.2.noised.{name}" for name in ("running_mean", "running_var", "num_batches_tracked")]


def random() -> Generator:
    return torch.Generator().manual_seed(0)


@pytest.fixture
def net() -> DualNet:
    """A dual network whose branches differ: BN_a is what a donor might have given."""
    made = dual(network()).train()
    load(
        made,
        {
            "network.2.noised.running_mean": torch.tensor([0.3, -0.5, 0.2]),
            "network.2.noised.running_var": torch.tensor([0.5, 2.0, 1.5]),
        },
    )
    return made


def snapshot(net: DualNet) -> Tensors:
    return {name: tensor.clone() for name, tensor in tensors(net).items()}


def gradients(net: nn.Module) -> list[Tensor]:
    return [p.grad.clone() for p in net.parameters() if p.grad is not None]


def plain_gradients(net: DualNet, branch: Branch, x: Tensor, *, batch_statistics: bool) -> list[Tensor]:
    """The gradient of the mean cross-entropy, from an ordinary PyTorch network in train or eval mode."""
    ordinary = plain(net, branch).train(batch_statistics)
    F.cross_entropy(ordinary(x), Y).backward()
    return gradients(ordinary)


@contextmanager
def passes(net: DualNet) -> Iterator[list[tuple[int, bool]]]:
    """Records (rows, whether autograd was on) of every forward pass."""
    seen: list[tuple[int, bool]] = []
    hook = net.network.register_forward_pre_hook(lambda _, args: seen.append((len(args[0]), torch.is_grad_enabled())))
    yield seen
    hook.remove()


def assert_same(found: list[Tensor], expected: list[Tensor]) -> None:
    assert len(found) == len(expected) == 6  # two weights and biases, w and b of batch norm
    alive = [gradient for gradient in expected if gradient.abs().max() > 1e-3]
    assert len(alive) >= 5, "all but the bias before batch norm, which a batch's own mean cancels"
    torch.testing.assert_close(found, expected)


def test_standard_training_is_cross_entropy_through_bn_c(net: DualNet) -> None:
    expected = plain_gradients(net, Branch.CLEAN, X, batch_statistics=True)
    before = snapshot(net)
    with passes(net) as seen:
        Standard()(net, X, Y, random())
    assert seen == [(8, True)]
    assert_same(gradients(net), expected)
    after = tensors(net)
    assert all(torch.equal(after[name], before[name]) for name in BN_A)
    assert after["network.2.clean.num_batches_tracked"] == 1


def test_objectives_add_to_the_gradient_that_is_there(net: DualNet) -> None:
    Standard()(net, X, Y, random())
    once = gradients(net)
    load(net, {name: value for name, value in tensors(net).items() if name not in BN_C})
    Standard()(net, X, Y, random())
    assert_same(gradients(net), [2 * g for g in once])


@pytest.mark.parametrize("lam", [0.0, 0.25, 0.5, 1.0])
@pytest.mark.parametrize("clip", [None, 1e6])
def test_calibration_is_eq_5(net: DualNet, lam: float, clip: float | None) -> None:
    clean = plain_gradients(net, Branch.CLEAN, X, batch_statistics=True)
    noised = plain_gradients(net, Branch.NOISED, X, batch_statistics=False)
    expected = [(1 - lam) * c + lam * n for c, n in zip(clean, noised, strict=True)]
    before = snapshot(net)
    Calibrated(lam, clip)(net, X, Y, random())
    assert_same(gradients(net), expected)
    after = tensors(net)
    assert all(torch.equal(after[name], before[name]) for name in BN_A), "PNC leaves BN_a as it was estimated"
    assert all(not torch.equal(after[name], before[name]) for name in BN_C), "BN_c follows the data whatever λ is"


@pytest.mark.parametrize(
    ("lam", "clip", "expected"),
    [
        (0.0, None, [(8, True)]),  # the cost of standard training
        (0.0, 10.0, [(8, True)]),
        (0.5, None, [(8, True)]),  # both branches in one pass, which part at the first batch norm
        (0.5, 10.0, [(8, True), (8, True)]),  # apart, because only one of the gradients is clipped
        (1.0, None, [(8, True), (8, False)]),  # BN_c's statistics need a forward pass, but no backward
        (1.0, 10.0, [(8, True), (8, False)]),
    ],
)
def test_each_lambda_takes_the_cheapest_path(
    net: DualNet, lam: float, clip: float | None, expected: list[tuple[int, bool]]
) -> None:
    with passes(net) as seen:
        Calibrated(lam, clip)(net, X, Y, random())
    assert seen == expected


def test_only_the_calibration_gradient_is_clipped(net: DualNet) -> None:
    clean = plain_gradients(net, Branch.CLEAN, X, batch_statistics=True)
    noised = plain_gradients(net, Branch.NOISED, X, batch_statistics=False)
    norm = torch.cat([g.flatten() for g in noised]).norm().item()
    largest = norm / 8  # λ g has norm norm / 2, four times too long, so what is left of it is g / 8
    Calibrated(0.5, clip=largest)(net, X, Y, random())
    assert_same(gradients(net), [c / 2 + n / 8 for c, n in zip(clean, noised, strict=True)])


def parameters(*values: float) -> list[nn.Parameter]:
    """Parameters of one number each with these gradients."""
    made = [nn.Parameter(torch.zeros(1)) for _ in values]
    for parameter, value in zip(made, values, strict=True):
        parameter.grad = torch.tensor([value])
    return made


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((30.0, 40.0), (6.0, 8.0)),  # norm 50: 10 g / 50
        ((3.0, 4.0), (3.0, 4.0)),  # norm 5: untouched
        ((6.0, 8.0), (6.0, 8.0)),  # norm 10: not above
        ((0.0, 0.0), (0.0, 0.0)),
    ],
)
def test_clamp_scales_the_whole_gradient(before: tuple[float, float], after: tuple[float, float]) -> None:
    made = [*parameters(*before), nn.Parameter(torch.zeros(1))]
    clamp(made, 10.0)
    assert [p.grad.item() for p in made[:2] if p.grad is not None] == pytest.approx(after, rel=1e-6)
    assert made[2].grad is None


def shifted(loss: Loss, x: Tensor, generator: Generator) -> Tensor:
    """An attack that can be recomputed: every pixel a quarter brighter."""
    return (x + 0.25).clamp(0, 1)


def running(before: np.ndarray, batch: np.ndarray) -> np.ndarray:
    return 0.9 * before + 0.1 * batch


def test_adversarial_training_moves_bn_c_by_clean_and_bn_a_by_attacked_inputs_only(net: DualNet) -> None:
    """PyTorch's running variance takes the unbiased one, n / (n − 1) σ²: ddof = 1."""
    before = {name: tensor.numpy() for name, tensor in snapshot(net).items()}
    Adversarial(shifted)(net, X, Y, random())
    after = tensors(net)
    weight, bias = before["network.1.weight"], before["network.1.bias"]
    pixels = X.flatten(1).numpy()
    for branch, inputs in (("clean", pixels), ("noised", np.clip(pixels + 0.25, 0, 1))):
        reached = inputs @ weight.T + bias
        for name, batch in (("running_mean", reached.mean(0)), ("running_var", reached.var(0, ddof=1))):
            key = f"network.2.{branch}.{name}"
            np.testing.assert_allclose(after[key].numpy(), running(before[key], batch), rtol=1e-5, atol=1e-6)
        assert after[f"network.2.{branch}.num_batches_tracked"] == 1


def test_adversarial_loss_is_the_mean_of_both(net: DualNet) -> None:
    clean = plain_gradients(net, Branch.CLEAN, X, batch_statistics=True)
    noised = plain_gradients(net, Branch.NOISED, shifted(None, X, random()), batch_statistics=True)  # type: ignore[arg-type]
    Adversarial(shifted)(net, X, Y, random())
    assert_same(gradients(net), [(c + n) / 2 for c, n in zip(clean, noised, strict=True)])


def test_the_training_attack_looks_through_frozen_bn_a(net: DualNet) -> None:
    """The same images come from PGD on the ordinary BN_a network in eval mode; the attack's passes move nothing."""
    attack = PGD(eps=0.1, steps=3, step_size=0.05)
    ordinary = plain(net, Branch.NOISED)
    expected = attack(lambda z: F.cross_entropy(ordinary(z), Y, reduction="none"), X, random())
    found = []

    def noted(loss: Loss, x: Tensor, generator: Generator) -> Tensor:
        found.append(attack(loss, x, generator))
        return found[0]

    Adversarial(noted)(net, X, Y, random())
    torch.testing.assert_close(found[0], expected)
    assert tensors(net)["network.2.noised.num_batches_tracked"] == 1, "only the training pass itself moved BN_a"


def test_dropout_is_off_for_the_attack_and_on_for_training() -> None:
    net = dual(network(dropout=True)).train()
    dropout = net.network[4]  # type: ignore[index]
    modes = []
    dropout.register_forward_pre_hook(lambda module, _: modes.append(module.training))
    Adversarial(PGD(steps=2))(net, X, Y, random())
    assert modes == [False, False, True]


def test_evaluating_puts_every_mode_back_as_it_was_even_after_an_error() -> None:
    net = network(dropout=True).train()
    net[4].eval()
    before = [module.training for module in net.modules()]
    with evaluating(net):
        assert not any(module.training for module in net.modules())
    assert [module.training for module in net.modules()] == before
    with pytest.raises(ZeroDivisionError), evaluating(net):
        raise ZeroDivisionError
    assert [module.training for module in net.modules()] == before


@pytest.mark.parametrize("lam", [0.25, 0.7, 1.0])
def test_one_step_trains_bn_c_on_the_image_and_bn_a_on_a_step_along_its_gradient(net: DualNet, lam: float) -> None:
    """Oracle: ordinary networks, one for each branch; the step is that of an ordinary network in train mode."""
    ordinary, pixels = plain(net, Branch.CLEAN).train(), X.clone().requires_grad_()
    F.cross_entropy(ordinary(pixels), Y).backward()
    assert pixels.grad is not None
    attacked = (X + 0.1 * pixels.grad.sign()).clamp(0, 1)
    assert (attacked - X).abs().max() == pytest.approx(0.1)
    clean = plain_gradients(net, Branch.CLEAN, X, batch_statistics=True)
    noised = plain_gradients(net, Branch.NOISED, attacked, batch_statistics=True)
    before = snapshot(net)
    loss = OneStep(lam, eps=0.1, share=1.0)(net, X, Y, random())
    assert_same(gradients(net), [(1 - lam) * c + lam * n for c, n in zip(clean, noised, strict=True)])
    parts = {
        branch: F.cross_entropy(plain(net, branch).train()(x), Y).item()
        for branch, x in ((Branch.CLEAN, X), (Branch.NOISED, attacked))
    }
    assert loss == pytest.approx((1 - lam) * parts[Branch.CLEAN] + lam * parts[Branch.NOISED])
    after = tensors(net)
    assert all(not torch.equal(after[name], before[name]) for name in (*BN_A, *BN_C)), "both branches follow their data"


def test_one_step_is_standard_training_on_the_batches_that_are_not_its_own(net: DualNet) -> None:
    expected = plain_gradients(net, Branch.CLEAN, X, batch_statistics=True)
    for objective in (OneStep(0.7, eps=0.1, share=0.0), OneStep(0.0, eps=0.1)):
        net.zero_grad()
        before = snapshot(net)
        objective(net, X, Y, random())
        assert_same(gradients(net), expected)
        assert all(torch.equal(tensors(net)[name], before[name]) for name in BN_A)


def test_one_step_attacks_its_share_of_the_batches(net: DualNet) -> None:
    generator = random()
    objective = OneStep(0.7, eps=0.1, share=0.25)
    with passes(net) as seen:
        for _ in range(400):
            objective(net, X, Y, generator)
    assert len(seen) - 400 == pytest.approx(100, abs=4 * (400 * 0.25 * 0.75) ** 0.5)


def test_one_step_goes_forward_and_back_twice_and_no_more(net: DualNet) -> None:
    with passes(net) as seen:
        OneStep(0.7, eps=0.1, share=1.0)(net, X, Y, random())
    assert seen == [(8, True), (8, True)]
