from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedrbn.attacks import PGD, Attack, from_config
from fedrbn.attacks.pgd import fgsm_rs, mia, pgd
from fedrbn.config import AttackConfig


def half_way(loss: object, x: Tensor, generator: torch.Generator) -> Tensor:
    """A ready-made attack of one's own."""
    return x / 2


def from_settings(config: AttackConfig) -> Attack:
    """A factory of one's own."""
    return pgd(config.eps, steps=config.steps + 1)


def of_two_arguments(x: Tensor, generator: torch.Generator) -> Tensor:
    return x


def returning_a_text(config: AttackConfig) -> str:
    return config.name


not_callable = "a text"


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, PGD(8 / 255, 7, 2 / 255, random_start=True)),
        ({"name": "pgd", "eps": "16/255", "steps": 20, "step_size": "1/255"}, pgd(16 / 255, 20, 1 / 255)),
        ({"name": "mia", "steps": 10}, mia(8 / 255, 10, 2 / 255)),
        ({"name": "fgsm-rs", "eps": "4/255"}, fgsm_rs(4 / 255)),
        ({"name": f"{__name__}:half_way"}, half_way),
        ({"name": f"{__name__}:from_settings", "steps": 4}, pgd(steps=5)),
    ],
)
def test_builds_the_attack_it_describes(settings: dict[str, object], expected: Attack) -> None:
    assert from_config(AttackConfig.model_validate(settings)) == expected


@pytest.mark.parametrize("name", ["pgd", "mia"])
def test_authors_release_in_pixels(name: str) -> None:
    # ε = 8/255 of a range twice as wide is 4/255 in pixels; the step is 1.25 · 4/255 / 7 = 5/1785.
    attack = from_config(AttackConfig(name=name, threat="authors-release"))
    assert isinstance(attack, PGD)
    assert attack.eps == 4 / 255
    assert attack.step_size == pytest.approx(5 / 1785)
    assert attack.box == (0.5, 1.0)
    assert attack.steps == 7
    assert (attack.decay, attack.random_start) == ((1.0, False) if name == "mia" else (0.0, True))


def test_authors_release_equals_their_arithmetic_on_scaled_inputs() -> None:
    """Their attack, on z = 2x − 1 in [-1, 1]: ball of 8/255 around z, then the box [0, 1] of z; our pixels are x."""
    x = torch.rand(20, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    weights = torch.tensor([1.0, -1.0, 2.0, -0.5, 0.0, 3.0], dtype=torch.float64)
    eps, steps = 8 / 255, 7
    z = 2 * x - 1
    noise = torch.rand(z.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    moved = (z + eps * (2 * noise - 1)).clamp(0, 1)
    for _ in range(steps):
        moved = moved + 1.25 * eps / steps * weights.sign()
        moved = torch.minimum(torch.maximum(moved, z - eps), z + eps).clamp(0, 1)

    attack = from_config(AttackConfig(threat="authors-release"))
    found = attack(lambda pixels: (2 * pixels - 1) @ weights, x, torch.Generator().manual_seed(5))
    torch.testing.assert_close(2 * found - 1, moved, rtol=0, atol=1e-12)


def test_a_misspelt_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"got attack.name 'fgsm_rs'; expected one of pgd, mia, .*'fgsm-rs'\?"):
        from_config(AttackConfig(name="fgsm_rs"))


def test_a_ready_made_attack_cannot_take_another_threat_model() -> None:
    config = AttackConfig(name=f"{__name__}:half_way", threat="authors-release")
    with pytest.raises(ValueError, match="got threat 'authors-release' with the ready-made attack"):
        from_config(config)


@pytest.mark.parametrize("name", ["not_callable", "of_two_arguments", "returning_a_text"])
def test_refuses_what_is_not_an_attack(name: str) -> None:
    with pytest.raises(TypeError, match=r"expected \(loss, x, generator\) -> x_adv, or \(config\)"):
        from_config(AttackConfig(name=f"{__name__}:{name}"))
