from __future__ import annotations

import copy
import random
import sys
from typing import TYPE_CHECKING, Literal

import numpy as np
import pytest
import torch
from torch import nn

from fedrbn.attacks import Untargeted
from fedrbn.attacks.autoattack import AttackPart, AutoAttack, apgd, square
from fedrbn.attacks.pgd import pgd
from fedrbn.errors import AttackError

if TYPE_CHECKING:
    from tests.attacks.conftest import Trained

pyautoattack = pytest.importorskip("pyautoattack", reason="needs pip install 'fedrbn[attacks]'")

EPS = 24 / 255


def seed(number: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(number)


STANDARD = ("apgd-ce", "apgd-t", "fab-t", "square")


@pytest.mark.parametrize("parts", [("apgd-ce", "square"), pytest.param(STANDARD, marks=pytest.mark.slow)])
def test_equals_the_bare_package_sample_by_sample(trained: Trained, parts: tuple[AttackPart, ...]) -> None:
    net, x, y = copy.deepcopy(trained.net), trained.x[:16], trained.y[:16]
    attack = AutoAttack(eps=EPS) if parts == STANDARD else AutoAttack(eps=EPS, only=parts, queries=200)
    found = attack(net, x, y, seed())

    bare = pyautoattack.AutoAttack(
        copy.deepcopy(trained.net), eps=EPS, seed=int(torch.randint(2**31, (), generator=seed())), device="cpu"
    )
    assert tuple(bare.attacks_to_run) == STANDARD
    assert bare.square.n_queries == 5000
    bare.attacks_to_run, bare.square.n_queries = list(parts), attack.queries
    trace = sys.gettrace()  # the bare package removes it, and coverage with it
    with torch.random.fork_rng():
        expected, _ = bare.run_standard_evaluation(x, y)
    sys.settrace(trace)
    assert torch.equal(found, expected)
    fooled = trained.net(found).argmax(1) != y
    assert fooled.any()
    assert not fooled.all(), "the later parts of the ensemble must have had samples to work on"


def test_leaves_its_host_as_it_was(trained: Trained, capsys: pytest.CaptureFixture[str]) -> None:
    net = copy.deepcopy(trained.net)
    layers = list(net.children())
    layers[1].train()  # a batch norm that moves its statistics at every pass
    layers[0].weight.requires_grad_(False)
    layers[-1].bias.grad = torch.full((10,), 7.0)
    before = copy.deepcopy(net.state_dict())
    modes = [module.training for module in net.modules()]
    states = torch.get_rng_state(), random.getstate(), str(np.random.get_state())  # noqa: NPY002
    trace = sys.gettrace()
    x, y = trained.x[:8], trained.y[:8]
    sys.settrace(_trace)
    try:
        AutoAttack(eps=EPS, only=("fab-t", "square"), queries=20)(net, x, y, seed())
        assert sys.gettrace() is _trace
    finally:
        sys.settrace(trace)

    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert [module.training for module in net.modules()] == modes
    assert not layers[0].weight.requires_grad
    assert sum(parameter.requires_grad for parameter in net.parameters()) == len(list(net.parameters())) - 1
    assert (layers[-1].bias.grad == 7).all()
    assert all(parameter.grad is None for parameter in net.parameters() if parameter is not layers[-1].bias)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (random.getstate(), str(np.random.get_state())) == states[1:]  # noqa: NPY002
    assert capsys.readouterr() == ("", "")


def _trace(frame: object, event: str, argument: object) -> None:
    """A trace function like a debugger's, that traces nothing."""


@pytest.mark.parametrize("attack", [square(EPS, queries=200), apgd(EPS), apgd(EPS, "dlr"), apgd(EPS, "t")])
def test_parts_alone_stay_in_the_ball_and_fool_some(trained: Trained, attack: AutoAttack) -> None:
    x, y = trained.x[:24], trained.y[:24]
    with torch.inference_mode():
        found = attack(trained.net, x, y, seed())
        fooled = (trained.net(found).argmax(1) != y).sum()
        wrong = (trained.net(x).argmax(1) != y).sum()
    assert (found - x).abs().max() <= EPS + 1e-6
    assert found.min() >= 0
    assert found.max() <= 1
    assert fooled > wrong


def test_is_deterministic_per_generator(trained: Trained) -> None:
    first, again, other = (
        square(EPS, queries=100)(trained.net, trained.x[:24], trained.y[:24], seed(number)) for number in (0, 0, 1)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_any_callable_in_any_dtype_will_do(trained: Trained) -> None:
    net, x, y = copy.deepcopy(trained.net).double(), trained.x[:10], trained.y[:10]
    found = apgd(EPS)(lambda pixels: 2 * net(pixels), x.double(), y, seed())
    assert found.dtype == torch.float64
    assert (found != x).any()
    assert all(parameter.grad is None for parameter in net.parameters())


def test_few_classes_have_fewer_targets(trained: Trained) -> None:
    x, y = trained.x[:24], trained.y[:24]
    x, y = x[y < 4], y[y < 4]
    found = AutoAttack(eps=EPS, queries=20)(lambda pixels: trained.net(pixels)[:, :4], x, y, seed())
    assert (found != x).any()


def test_refuses_fewer_than_four_classes() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 3)).eval()
    x, y = torch.full((2, 1, 8, 8), 0.5), torch.tensor([0, 1])
    with pytest.raises(ValueError, match="got a network of 3 classes; expected at least 4"):
        AutoAttack()(net, x, y, seed())
    assert square(queries=5)(net, x, y, seed()).shape == x.shape


@pytest.mark.parametrize("version", ["standard", "plus", "rand"])
def test_the_parts_are_those_of_the_package(version: Literal["standard", "plus", "rand"]) -> None:
    package = pyautoattack.AutoAttack(nn.Identity(), norm="Linf", eps=EPS, version=version, device="cpu")
    assert AutoAttack(version=version).parts == tuple(package.attacks_to_run)


def test_an_empty_batch_is_no_work() -> None:
    assert AutoAttack()(nn.Identity(), torch.empty(0, 1, 8, 8), torch.empty(0), seed()).shape == (0, 1, 8, 8)


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyautoattack", None)
    with pytest.raises(AttackError, match=r"pip install 'fedrbn\[attacks\]'"):
        AutoAttack()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"eps": 0.0}, "got eps"),
        ({"version": "quick"}, "got version 'quick'; expected standard, plus or rand"),
        ({"only": ("apgd",)}, r"got only \('apgd',\); expected None, or some of apgd-ce"),
        ({"only": ()}, "got only"),
        ({"queries": 0}, "got queries 0"),
        ({"batch_size": 0}, "got batch_size 0"),
    ],
)
def test_refuses_settings_that_make_no_sense(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AutoAttack(**settings)  # type: ignore[arg-type]


def test_refuses_what_is_no_image() -> None:
    with pytest.raises(ValueError, match=r"got pixels of shape \(2, 64\)"):
        AutoAttack()(nn.Identity(), torch.zeros(2, 64), torch.zeros(2), seed())


def test_refuses_an_unknown_loss_of_apgd() -> None:
    with pytest.raises(ValueError, match="got loss 'cw'; expected ce, dlr or t"):
        apgd(loss="cw")  # type: ignore[arg-type]


@pytest.mark.slow
def test_never_leaves_more_right_than_pgd_with_100_steps(trained: Trained) -> None:
    x, y = trained.x[:48], trained.y[:48]
    attacks = {"aa": AutoAttack(eps=EPS), "pgd": Untargeted(pgd(EPS, steps=100))}
    right = {name: trained.net(attack(trained.net, x, y, seed())).argmax(1) == y for name, attack in attacks.items()}
    assert 0 < right["pgd"].sum() < 48, "the comparison must not happen where every attack gives the same"
    assert right["aa"].sum() <= right["pgd"].sum()
    assert not (right["aa"] & ~right["pgd"]).any()
