from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch import Tensor

from fedrbn.attacks import (
    PGD,
    AutoAttack,
    Corruption,
    LocalSearch,
    LogitsAttack,
    Oblivious,
    Untargeted,
    from_config,
)
from fedrbn.attacks.named import attack_named, epsilon, in_pixels, with_eps
from fedrbn.attacks.pgd import fgsm_rs, mia, pgd
from fedrbn.builtin.attacks import FAMILIES, PAPER
from fedrbn.config import AttackConfig

if TYPE_CHECKING:
    from tests.attacks.conftest import Trained


def on_logits(logits: object, x: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
    return x


def on_loss(loss: object, x: Tensor, generator: torch.Generator) -> Tensor:
    return x


def of_two_arguments(x: Tensor, y: Tensor) -> Tensor:
    return x


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("pgd-7", Untargeted(pgd(8 / 255, 7, 2 / 255))),
        ("pgd-20", Untargeted(pgd(8 / 255, 20, 2 / 255))),
        ("pgd-20:eps=16/255", Untargeted(pgd(16 / 255, 20, 2 / 255))),
        ("pgd-100", Untargeted(pgd(8 / 255, 100, 2 / 255))),
        ("mia-20", Untargeted(mia(8 / 255, 20, 2 / 255))),
        ("mia-100", Untargeted(mia(8 / 255, 100, 2 / 255))),
        ("lsa-7", LocalSearch(rounds=7)),
        ("pgd", Untargeted(pgd())),
        ("pgd:steps=50,eps=8/255,step=1/255,restarts=5", Untargeted(pgd(8 / 255, 50, 1 / 255, restarts=5))),
        (" pgd: steps = 50, random-start = no ", Untargeted(pgd(steps=50, random_start=False))),
        ("pgd-100:restarts=5,eps=0.01", Untargeted(pgd(0.01, 100, 2 / 255, restarts=5))),
        ("mia:decay=0.5", Untargeted(mia(decay=0.5))),
        ("fgsm-rs:eps=4/255", Untargeted(fgsm_rs(4 / 255))),
        ("lsa:rounds=150,trial=change,accumulate=no", LocalSearch(150, trial="change", accumulate=False)),
        ("contrast:severity=5", Oblivious(Corruption("contrast", 5))),
        ("gaussian-noise", Oblivious(Corruption("gaussian-noise", 3))),
        (f"{__name__}:on_logits", on_logits),
        (f"{__name__}:on_loss", Untargeted(on_loss)),
    ],
)
def test_a_text_names_an_attack(text: str, expected: LogitsAttack) -> None:
    assert attack_named(text) == expected


def test_texts_of_autoattack() -> None:
    pytest.importorskip("pyautoattack", reason="needs pip install 'fedrbn[attacks]'")
    assert attack_named("aa") == AutoAttack(eps=8 / 255, version="standard", only=None, queries=5000)
    assert attack_named("autoattack:version=plus,eps=4/255") == AutoAttack(eps=4 / 255, version="plus")
    assert attack_named("square:queries=100") == AutoAttack(only=("square",), queries=100)
    assert attack_named("apgd:loss=t") == AutoAttack(only=("apgd-t",))
    assert epsilon(attack_named("square:eps=4/255")) == 4 / 255


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("pgd-10", r"got attack 'pgd-10'; expected one of pgd-7, .*Did you mean 'pgd-100'\?"),
        ("pdg:steps=3", r"got attack 'pdg'.*Did you mean 'pgd'\?"),
        ("", "got attack ''; expected one of pgd-7"),
        ("pgd:step_size=1/255", r"got setting 'step_size' in attack .*; expected eps, steps, step, .*'steps?'\?"),
        ("mia:restarts=2", "got setting 'restarts' in attack 'mia:restarts=2'; expected eps, steps, step, decay for"),
        ("pgd:steps", r"got 'steps' in attack 'pgd:steps'; expected settings such as steps=50,eps=8/255"),
        ("pgd:steps=", "got 'steps=' in attack"),
        ("pgd:steps=5,", "got '' in attack"),
        ("pgd:steps=5,steps=6", "got a setting twice"),
        ("pgd:steps=5.5", r"got steps=5\.5 in attack .*; expected a whole number"),
        ("pgd:eps=8/0", "got eps=8/0 in attack .*; expected a number such as 0.03 or 8/255"),
        ("pgd:eps=eight", "got eps=eight"),
        ("pgd:random-start=maybe", "got random-start=maybe in attack .*; expected yes or no"),
        ("pgd:eps=8", r"got eps 8\.0; expected a length in \[0, 1\] \(did you mean 8/255\?\)"),
        ("contrast:severity=9", "got severity 9"),
        ("no_such_package.module:thing", "cannot be imported"),
    ],
)
def test_a_text_with_a_mistake_is_answered_with_the_cure(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        attack_named(text)


def test_refuses_an_object_that_is_no_attack() -> None:
    with pytest.raises(TypeError, match=r"has the signature .*; expected \(loss, x, generator\) -> x_adv"):
        attack_named(f"{__name__}:of_two_arguments")


def test_epsilon_is_that_of_the_ball() -> None:
    assert epsilon(attack_named("pgd-20:eps=16/255")) == 16 / 255
    assert epsilon(attack_named("lsa-7")) is None
    assert epsilon(attack_named("contrast")) is None


def of_config(config: AttackConfig) -> PGD:
    return PGD(config.eps, config.steps)


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("pgd-20", "pgd-20:eps=4/255"),
        ("pgd:steps=3", "pgd:steps=3,eps=4/255"),
        ("square", "square:eps=4/255"),
        ("mia-20:eps=0.5", "mia-20:eps=0.5"),
        ("lsa-7", "lsa-7"),
        ("contrast:severity=2", "contrast:severity=2"),
        (f"{__name__}:of_config", f"{__name__}:of_config"),
    ],
)
def test_epsilon_is_written_out_and_the_runs_own_by_default(text: str, written: str) -> None:
    assert with_eps(text, 4 / 255) == written
    if "square" not in text:
        assert attack_named(text, AttackConfig(eps=4 / 255)) == attack_named(written, AttackConfig(eps=4 / 255))


@pytest.mark.parametrize(
    ("eps", "text"),
    [(8 / 255, "8/255"), (0.5, "127.5/255"), (0.1, "25.5/255"), (0.0123456789, "0.0123456789"), (0.0, "0/255")],
)
def test_lengths_are_written_exactly(eps: float, text: str) -> None:
    assert in_pixels(eps) == text
    above, _, below = text.partition("/")
    assert float(above) / float(below or 1) == eps


def test_an_attack_made_from_a_config_is_the_same_in_training_and_evaluation() -> None:
    config = AttackConfig(name=f"{__name__}:of_config", eps=4 / 255, steps=3)
    assert attack_named(config.name, config) == Untargeted(from_config(config))
    assert from_config(config) == PGD(4 / 255, 3)


FAST = {"autoattack": "square:queries=10", "aa": "square:queries=10", "square": "square:queries=10"}
"""Stand-ins where the real thing takes long; its own tests run it."""


@pytest.mark.parametrize("name", [*PAPER, *FAMILIES])
def test_every_name_runs_the_same_way(trained: Trained, name: str) -> None:
    if name in ("aa", "autoattack", "apgd", "square"):
        pytest.importorskip("pyautoattack", reason="needs pip install 'fedrbn[attacks]'")
    x, y = trained.x[:6], trained.y[:6]
    found = attack_named(FAST.get(name, name))(trained.net, x, y, torch.Generator().manual_seed(0))
    assert found.shape == x.shape
    assert found.min() >= 0
    assert found.max() <= 1
