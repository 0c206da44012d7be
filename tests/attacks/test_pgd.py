"""One table of attacks × one table of toy models: what every attack on a loss must respect."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedrbn.attacks import PGD, Untargeted
from fedrbn.attacks.pgd import fgsm_rs, mia, pgd

if TYPE_CHECKING:
    from tests.attacks.conftest import Trained

EPS = 8 / 255

ATTACKS = {
    "pgd": pgd(),
    "pgd, restarts": pgd(restarts=3),
    "pgd, no random start": pgd(random_start=False),
    "pgd, one long step": pgd(steps=1, step_size=1.0),
    "mia": mia(),
    "mia, slow": mia(decay=0.5, step_size=1 / 255),
    "fgsm-rs": fgsm_rs(),
}


class Toy(NamedTuple):
    net: nn.Module
    x: Tensor
    y: Tensor

    def loss(self, x: Tensor) -> Tensor:
        return F.cross_entropy(self.net(x), self.y, reduction="none")


def _seeded(build: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return build()


def _toy(build: Callable[[], nn.Module], dtype: torch.dtype = torch.float32) -> Toy:
    """The network beside pixels that include both ends of their range, where ball and box both bind."""
    random = torch.Generator().manual_seed(4)
    x = torch.rand(6, 1, 8, 8, generator=random).to(dtype)
    x[0], x[1] = 0, 1
    return Toy(_seeded(build).to(dtype), x, torch.randint(10, (6,), generator=random))


def small_net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 10)
    )


class Saturated(nn.Module):
    """Logits that do not depend on the input: the gradient is zero everywhere."""

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1).sum(1, keepdim=True) * torch.zeros(10, dtype=x.dtype)


TOYS: dict[str, Callable[[], Toy]] = {
    "linear": lambda: _toy(lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10))),
    "convolutional, eval": lambda: _toy(lambda: small_net().eval()),
    "mixed modes": lambda: _toy(lambda: nn.Sequential(nn.Dropout(0.0).train(), small_net().eval())),
    "zero gradient": lambda: _toy(Saturated),
    "float64": lambda: _toy(lambda: small_net().eval(), torch.float64),
    "bfloat16": lambda: _toy(lambda: small_net().eval(), torch.bfloat16),
}

every_pair = pytest.mark.parametrize(
    ("attack", "toy"),
    [pytest.param(attack, toy, id=f"{a} on {t}") for a, attack in ATTACKS.items() for t, toy in TOYS.items()],
)


def seed(number: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(number)


@every_pair
def test_stays_in_the_ball_and_in_the_pixel_range(attack: PGD, toy: Callable[[], Toy]) -> None:
    model = toy()
    adversarial = attack(model.loss, model.x, seed())
    assert adversarial.shape == model.x.shape
    assert adversarial.dtype == model.x.dtype
    assert not adversarial.requires_grad
    rounding = torch.finfo(model.x.dtype).eps
    assert (adversarial - model.x).abs().max() <= EPS + rounding
    assert adversarial.min() >= 0
    assert adversarial.max() <= 1


@every_pair
def test_leaves_modes_buffers_gradients_and_the_input_untouched(attack: PGD, toy: Callable[[], Toy]) -> None:
    model = toy()
    before, x = copy.deepcopy(model.net.state_dict()), model.x.clone()
    modes = [module.training for module in model.net.modules()]
    for parameter in model.net.parameters():
        parameter.grad = torch.full_like(parameter, 7.0)
    attack(model.loss, model.x, seed())
    assert [module.training for module in model.net.modules()] == modes
    assert all(torch.equal(value, before[name]) for name, value in model.net.state_dict().items())
    assert all((parameter.grad == 7).all() and parameter.requires_grad for parameter in model.net.parameters())
    assert torch.equal(model.x, x)
    assert not model.x.requires_grad


@every_pair
def test_is_deterministic_per_generator(attack: PGD, toy: Callable[[], Toy]) -> None:
    model = toy()
    first, again, other = (attack(model.loss, model.x, seed(number)) for number in (0, 0, 1))
    assert torch.equal(first, again)
    assert torch.equal(first, other) != attack.random_start or attack.step_size >= 2 * EPS


def test_draws_nothing_from_the_global_random_state() -> None:
    model = TOYS["linear"]()
    before = torch.get_rng_state()
    pgd(restarts=2)(model.loss, model.x, seed())
    assert torch.equal(torch.get_rng_state(), before)


# A linear loss w·x has the constant gradient w, so its maximum in the ball is at x + ε·sign(w). From the worst start,
# x − ε·sign(w), an attack gets there if steps · step_size ≥ 2 ε; from x itself, if steps · step_size ≥ ε. The default
# pgd walks 7 · 2/255 = 14/255 < 16/255, so from the worst start it ends at x + 6/255 · sign(w).
REACHING = {
    "pgd, 8 steps": pgd(steps=8),
    "pgd, no random start": pgd(random_start=False),
    "pgd, restarts": pgd(steps=8, restarts=2),
    "mia": mia(),
}


def _linear() -> tuple[Tensor, Tensor, Callable[[Tensor], Tensor]]:
    """Weights with a zero among them, and pixels at least ε away from 0 and 1, where only the ball binds."""
    weights = torch.randn(5, generator=seed(1), dtype=torch.float64)
    weights[2] = 0
    x = 0.1 + 0.8 * torch.rand(50, 5, generator=seed(2), dtype=torch.float64)
    return weights, x, lambda pixels: pixels @ weights


@pytest.mark.parametrize("attack", REACHING.values(), ids=REACHING)
def test_finds_the_exact_worst_case_of_a_linear_model(attack: PGD) -> None:
    weights, x, loss = _linear()
    adversarial = attack(loss, x, seed())
    moved = weights != 0
    torch.testing.assert_close(adversarial[:, moved], (x + EPS * weights.sign())[:, moved], rtol=0, atol=1e-12)


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_never_ends_below_the_clean_loss_of_a_linear_model(attack: PGD) -> None:
    # Even from the worst start the default pgd nets −8 + 14 = +6 (in 1/255), and fgsm-rs −ε + 1.25 ε = +0.25 ε.
    _, x, loss = _linear()
    assert (loss(attack(loss, x, seed())) >= loss(x)).all()


def test_a_zero_gradient_stays_at_the_start() -> None:
    model = TOYS["zero gradient"]()
    assert torch.equal(mia()(model.loss, model.x, seed()), model.x)


def test_momentum_accumulates_normalised_gradients() -> None:
    # The loss of (a, b) is −3a if a > 0.5 else +3a, plus b/10: gradients (∓3, 0.1), with mean size 1.55.
    # Start (0.5, 0.5), ε 0.1, step 0.04, decay 1. Gradients are written before division by 1.55:
    # step 1 at a = 0.50: g = (+3, 0.1), sum (+3, 0.1) → (0.54, 0.54)
    # step 2 at a = 0.54: g = (−3, 0.1), sum ( 0, 0.2) → (0.54, 0.58)  plain PGD would go back to 0.50
    # step 3 at a = 0.54: g = (−3, 0.1), sum (−3, 0.3) → (0.50, 0.60), b clipped by the ball
    def loss(x: Tensor) -> Tensor:
        slope = torch.where(x[:, 0] > 0.5, -3.0, 3.0)
        return slope * x[:, 0] + 0.1 * x[:, 1]

    x = torch.full((1, 2), 0.5, dtype=torch.float64)
    expected = {1: (0.54, 0.54), 2: (0.54, 0.58), 3: (0.50, 0.60)}
    for steps, point in expected.items():
        found = mia(eps=0.1, steps=steps, step_size=0.04)(loss, x, seed())
        torch.testing.assert_close(found, torch.tensor([point], dtype=torch.float64), rtol=0, atol=1e-12)


def test_momentum_normalises_each_sample_by_its_own_gradient() -> None:
    # Scaling one sample's loss by 1000 must change nothing, for itself or for its neighbour.
    model = TOYS["convolutional, eval"]()
    scale = torch.ones(6).index_fill(0, torch.tensor([2]), 1000.0)
    plain = mia()(model.loss, model.x, seed())
    torch.testing.assert_close(mia()(lambda x: scale * model.loss(x), model.x, seed()), plain)


def test_restarts_keep_the_highest_loss_of_each_sample(trained: Trained) -> None:
    net, x, y = trained

    def loss(pixels: Tensor) -> Tensor:
        return F.cross_entropy(net(pixels), y, reduction="none")

    one = pgd(steps=2)
    random = seed()
    runs = torch.stack([one(loss, x, random) for _ in range(3)])
    losses = torch.stack([loss(run).detach() for run in runs])
    assert (losses.argmax(0) != 0).any(), "the restarts must matter for some sample"
    expected = runs[losses.argmax(0), torch.arange(len(x))]
    assert torch.equal(replace(one, restarts=3)(loss, x, seed()), expected)


@pytest.mark.parametrize(("attack", "passes"), [(pgd(steps=5), 5), (mia(steps=4), 4), (pgd(steps=2, restarts=3), 9)])
def test_costs_no_more_forward_passes_than_it_needs(attack: PGD, passes: int) -> None:
    # n steps need n passes; each of r > 1 runs needs one more to be compared: 3 · (2 + 1) = 9.
    model = TOYS["linear"]()
    calls = 0

    def counted(x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return model.loss(x)

    attack(counted, model.x, seed())
    assert calls == passes


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode], ids=["no_grad", "inference_mode"])
def test_works_where_the_caller_has_switched_gradients_off(context: Callable[[], torch.no_grad]) -> None:
    model = TOYS["convolutional, eval"]()
    expected = pgd(restarts=2)(model.loss, model.x, seed())
    with context():
        x = model.x + 0  # under inference_mode this is an inference tensor
        found = pgd(restarts=2)(model.loss, x, seed())
    assert torch.equal(found, expected)


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_an_empty_batch_is_attacked_without_asking_the_network(attack: PGD) -> None:
    def refuse(x: Tensor) -> Tensor:
        raise AssertionError("nothing to compute")

    assert attack(refuse, torch.empty(0, 1, 8, 8), seed()).shape == (0, 1, 8, 8)


def test_the_box_wins_where_it_does_not_meet_the_ball() -> None:
    # Box [0.5, 1], ε 0.1. 0.2 is lifted to 0.5; 0.45 may reach 0.55; 0.95 may reach 1 upwards, 0.85 downwards.
    x = torch.tensor([[0.2, 0.45, 0.95, 0.95]], dtype=torch.float64)
    slope = torch.tensor([1.0, 1.0, 1.0, -1.0], dtype=torch.float64)
    found = PGD(eps=0.1, steps=3, step_size=0.1, box=(0.5, 1.0))(lambda pixels: pixels @ slope, x, seed())
    torch.testing.assert_close(found, torch.tensor([[0.5, 0.55, 1.0, 0.85]], dtype=torch.float64))


def test_untargeted_maximises_the_cross_entropy_of_the_labels() -> None:
    model = TOYS["convolutional, eval"]()
    found = Untargeted(pgd())(model.net, model.x, model.y, seed())
    assert torch.equal(found, pgd()(model.loss, model.x, seed()))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"eps": -0.1}, r"got eps -0\.1; expected a length in \[0, 1\]"),
        ({"eps": float("nan")}, "got eps nan"),
        ({"eps": 8}, "got eps 8"),
        ({"steps": 0}, "got steps 0; expected at least 1"),
        ({"step_size": 0.0}, r"got step_size 0\.0; expected a length above 0"),
        ({"restarts": 0}, "got restarts 0"),
        ({"restarts": 2, "random_start": False}, "2 restarts without a random start"),
        ({"decay": -1.0}, "got decay"),
        ({"box": (1.0, 0.0)}, "got box"),
        ({"box": (-1.0, 1.0)}, "got box"),
    ],
)
def test_refuses_settings_that_make_no_sense(settings: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PGD(**settings)  # type: ignore[arg-type]


def test_no_attack_at_all_is_eps_zero() -> None:
    model = TOYS["linear"]()
    assert torch.equal(fgsm_rs(eps=0)(model.loss, model.x, seed()), model.x)


def test_refuses_a_loss_that_is_not_per_sample() -> None:
    model = TOYS["linear"]()
    with pytest.raises(ValueError, match=r"got a loss of shape \(\) for 6 samples; expected \(6,\)"):
        pgd()(lambda x: model.loss(x).mean(), model.x, seed())


@pytest.mark.parametrize("x", [torch.tensor([[-1.0, 1.0]]), torch.tensor([[0.0, 1.5]]), torch.tensor([[float("nan")]])])
def test_refuses_what_is_not_in_the_pixel_range(x: Tensor) -> None:
    with pytest.raises(ValueError, match=r"expected \[0, 1\].*Normalise inside the network"):
        pgd()(lambda pixels: pixels.sum(1), x, seed())


def test_refuses_bytes() -> None:
    with pytest.raises(TypeError, match=r"got images of torch\.uint8"):
        pgd()(lambda pixels: pixels.sum(1), torch.zeros(2, 3, dtype=torch.uint8), seed())
