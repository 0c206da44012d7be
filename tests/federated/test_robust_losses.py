"""TRADES, MART, fractional AT and calibrated logits, against their formulas in NumPy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Generator, Tensor, nn

from federated.tiny import client, network, samples
from fedrbn.attacks import PGD
from fedrbn.attacks.pgd import mia
from fedrbn.attacks.protocols import Loss
from fedrbn.config import ConfigError
from fedrbn.federated.client import local_update
from fedrbn.federated.methods import fatavg
from fedrbn.federated.objectives import Adversarial, Fractional, Mart, Standard, Trades
from fedrbn.federated.protocol import Round, Train
from fedrbn.federated.training.calfat import with_prior
from fedrbn.nets.dual_bn import DualNet, dual, single
from fedrbn.nets.state import load, tensors
from fedrbn.types import Branch, Role

X, Y = samples(8, seed=3).pixels(slice(None))


def random(seed: int = 0) -> Generator:
    return torch.Generator().manual_seed(seed)


class Noted:
    """An attack that can be recomputed (a quarter brighter), and keeps the loss it was asked to make large."""

    def __init__(self) -> None:
        self.losses: list[Loss] = []

    def __call__(self, loss: Loss, x: Tensor, generator: Generator) -> Tensor:
        self.losses.append(loss)
        return (x + 0.25).clamp(0, 1)


NOISED = (X + 0.25).clamp(0, 1)


@pytest.fixture
def net() -> DualNet:
    made = dual(network()).train()
    load(made, {"network.2.noised.running_mean": torch.tensor([0.3, -0.5, 0.2])})
    return made


def probabilities(net: DualNet) -> tuple[np.ndarray, np.ndarray]:
    """Clean and attacked, each normalised by its own batch, in NumPy: linear, batch norm, ReLU, linear, softmax."""
    own = {name.removeprefix("network."): tensor.double().numpy() for name, tensor in tensors(net).items()}

    def softmax(pixels: Tensor) -> np.ndarray:
        hidden = pixels.flatten(1).double().numpy() @ own["1.weight"].T + own["1.bias"]
        hidden = (hidden - hidden.mean(0)) / np.sqrt(hidden.var(0) + 1e-5)
        hidden = np.maximum(hidden * own["2.clean.weight"] + own["2.clean.bias"], 0)
        logits = hidden @ own["4.weight"].T + own["4.bias"]
        return np.exp(logits) / np.exp(logits).sum(1, keepdims=True)

    return softmax(X), softmax(NOISED)


ROWS, LABELS = np.arange(8), Y.numpy()


def test_trades_is_clean_cross_entropy_and_beta_times_the_divergence(net: DualNet) -> None:
    p, q = probabilities(net)
    expected = -np.log(p[ROWS, LABELS]).mean() + 3.0 * (p * np.log(p / q)).sum(1).mean()
    assert Trades(Noted(), beta=3.0)(net, X, Y, random()) == pytest.approx(expected, rel=1e-5)


def test_the_attack_of_trades_is_on_the_divergence_between_the_branches(net: DualNet) -> None:
    attack = Noted()
    with torch.no_grad():
        log_p = net(X, Branch.CLEAN).log_softmax(1)
        log_q = net(NOISED, Branch.NOISED).log_softmax(1)
        expected = (log_p.exp() * (log_p - log_q)).sum(1)
    at_that_time: list[Tensor] = []

    def noting(loss: Loss, x: Tensor, generator: Generator) -> Tensor:
        at_that_time.append(loss(NOISED).detach())
        return attack(loss, x, generator)

    Trades(noting)(net, X, Y, random())
    torch.testing.assert_close(at_that_time[0], expected)
    assert tensors(net)["network.2.noised.num_batches_tracked"] == 1, "the attack moved nothing"


def test_gradients_of_trades_reach_the_weights_through_both_terms(net: DualNet) -> None:
    """KL(p ‖ q) has gradients through p and q: central differences of the whole loss for one weight."""
    before = {name: tensor.clone() for name, tensor in tensors(net).items()}
    Trades(Noted(), beta=3.0)(net, X, Y, random())
    grad = dict(net.named_parameters())["network.1.weight"].grad
    assert grad is not None
    values = []
    for step in (1e-2, -1e-2):
        load(net, before)
        with torch.no_grad():
            dict(net.named_parameters())["network.1.weight"][1, 2] += step
        p, q = probabilities(net)
        values.append(-np.log(p[ROWS, LABELS]).mean() + 3.0 * (p * np.log(p / q)).sum(1).mean())
    assert grad[1, 2].item() == pytest.approx((values[0] - values[1]) / 2e-2, rel=1e-2)


def test_trades_needs_an_attack_that_starts_elsewhere() -> None:
    with pytest.raises(ConfigError, match=r"starts at the image itself.*Set attack.name to pgd"):
        Trades(mia())


def test_mart_is_the_formula(net: DualNet) -> None:
    """With two classes the largest wrong probability is that of the other class."""
    p, q = probabilities(net)
    right, wrong = q[ROWS, LABELS], q[ROWS, 1 - LABELS]
    apart = (p * np.log(p / q)).sum(1)
    expected = (-np.log(right) - np.log(1 - wrong) + 2.0 * apart * (1 - p[ROWS, LABELS])).mean()
    assert Mart(Noted(), beta=2.0)(net, X, Y, random()) == pytest.approx(expected, rel=1e-5)


def test_mart_takes_the_largest_wrong_class_of_several() -> None:
    """Logits (0, 1, 2) whatever the input, label 2: p = (e⁰, e¹, e²) / Σ; the largest wrong class is 1; KL is 0."""
    net = single(nn.Linear(1, 3))
    with torch.no_grad():
        net.network.weight.zero_()  # type: ignore[union-attr, operator]
        net.network.bias.copy_(torch.tensor([0.0, 1.0, 2.0]))  # type: ignore[union-attr, operator]
    p = np.exp([0.0, 1.0, 2.0]) / np.exp([0.0, 1.0, 2.0]).sum()
    loss = Mart(Noted())(net, torch.zeros(4, 1), torch.full((4,), 2), random())
    assert loss == pytest.approx(-np.log(p[2]) - np.log(1 - p[1]), rel=1e-5)


def test_mart_stays_finite_when_the_network_is_sure_of_a_wrong_class() -> None:
    net = single(nn.Linear(1, 3))
    with torch.no_grad():
        net.network.weight.zero_()  # type: ignore[union-attr, operator]
        net.network.bias.copy_(torch.tensor([0.0, 200.0, 0.0]))  # type: ignore[union-attr, operator]
    loss = Mart(Noted())(net, torch.zeros(4, 1), torch.zeros(4, dtype=torch.int64), random())
    assert loss == pytest.approx(200 + 200 - np.log(2), rel=1e-5)  # log(1 − p_1) = log(2 e⁻²⁰⁰)
    assert all(torch.isfinite(p.grad).all() for p in net.parameters() if p.grad is not None)


def test_fractional_at_is_adversarial_for_a_share_of_the_batches() -> None:
    attack = Noted()
    objective, generator = Fractional(Adversarial(attack), share=0.25), random()
    net = dual(network()).train()
    for _ in range(400):
        objective(net, X, Y, generator)
    # binomial(400, ¼): mean 100, standard deviation 8.7
    assert 70 < len(attack.losses) < 130
    assert tensors(net)["network.2.noised.num_batches_tracked"] == len(attack.losses)
    assert tensors(net)["network.2.clean.num_batches_tracked"] == 400, "every batch moves BN_c"


def test_the_prior_is_added_with_one_imagined_image_for_each_class() -> None:
    """Labels 0, 0, 1 of three classes: π = (3, 2, 1) / 6."""
    net = single(nn.Linear(2, 3))
    x = torch.rand(4, 2)
    shifted = with_prior(net, torch.tensor([0, 0, 1]))
    with torch.no_grad():
        expected = net(x, Branch.CLEAN) + torch.tensor([3 / 6, 2 / 6, 1 / 6]).log()
        torch.testing.assert_close(shifted(x, Branch.CLEAN), expected)
        one, two = shifted.paired(x, x)
    torch.testing.assert_close((one, two), (expected, expected))


def test_the_training_attack_climbs_the_calibrated_loss() -> None:
    """Weights 0 make all logits 0, so the calibrated ones are log π: labels 0, 0, 0, 1 give π = (4, 2) / 6.

    The attack has −log π_y to climb, 0.405 and 1.099; without the prior it would be log 2 = 0.693 for both classes.
    """
    asked: list[Tensor] = []

    def attack(loss: Loss, x: Tensor, generator: Generator) -> Tensor:
        asked.append(loss(x).detach())
        return x

    layer = nn.Linear(4, 2)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    labels = torch.tensor([0, 0, 0, 1])
    Adversarial(attack)(with_prior(single(layer), labels), torch.rand(4, 4), labels, random())
    torch.testing.assert_close(asked[0], -torch.tensor([4 / 6, 4 / 6, 4 / 6, 2 / 6]).log())


def test_training_with_the_prior_trains_the_network_itself_and_leaves_no_prior_in_it() -> None:
    """Equal priors shift all logits alike, which softmax does not see; unequal ones train otherwise."""
    method = fatavg(PGD(steps=1))
    member = client("c", Role.ST, 8, 0)
    ends = []
    for prior, labels in ((False, [0, 1] * 4), (True, [0, 1] * 4), (True, [1] * 8), (False, [1] * 8)):
        chosen = replace(method, class_prior=prior)
        net = chosen.network(network())
        start = {name: tensor.clone() for name, tensor in tensors(net).items()}
        train = replace(member.train, labels=torch.tensor(labels))
        round_ = Round(0, 1, chosen, start, lr=0.1, batch_size=4, local_epochs=1)
        upload = local_update(net, replace(member, train=train), round_, Train("c", Role.ST.duty, {}, calibrate=False))
        assert upload.shared.keys() | upload.personal.keys() == start.keys()
        ends.append(upload.shared["network.4.bias"])
    torch.testing.assert_close(ends[0], ends[1])
    moved = [(end - start["network.4.bias"]).abs().max() for end in ends[2:]]
    assert 0 < moved[0] < moved[1], "a class that makes up the prior has less to teach"


def test_standard_training_is_not_what_fractional_at_falls_back_on_by_chance() -> None:
    """share = 0 is not a setting, but the limit: the loss is that of standard training."""
    first, second = dual(network()).train(), dual(network()).train()
    assert Fractional(Adversarial(Noted()), share=0.0)(first, X, Y, random()) == Standard()(second, X, Y, random())
