"""Robust accuracy agrees with that of torchattacks, an independent implementation, under the same settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch import Tensor

from fedrbn.attacks import PGD, Untargeted
from fedrbn.attacks.pgd import mia, pgd

if TYPE_CHECKING:
    from tests.attacks.conftest import Trained

torchattacks = pytest.importorskip(
    "torchattacks", reason="needs pip install --no-deps torchattacks==3.5.1 (its dependencies would replace torch)"
)


def _ours(attack: PGD, trained: Trained) -> Tensor:
    return Untargeted(attack)(trained.net, trained.x, trained.y, torch.Generator().manual_seed(0))


def _accuracy(trained: Trained, x: Tensor) -> float:
    with torch.no_grad():
        return float((trained.net(x).argmax(1) == trained.y).double().mean())


@pytest.mark.parametrize(("eps", "steps"), [(8 / 255, 7), (16 / 255, 20), (24 / 255, 20)])
def test_pgd_is_as_strong(trained: Trained, eps: float, steps: int) -> None:
    reference = torchattacks.PGD(trained.net, eps=eps, alpha=2 / 255, steps=steps)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        expected = _accuracy(trained, reference(trained.x, trained.y))
    assert 0.02 < expected < 0.98, "the comparison must not happen where every attack gives the same"
    assert abs(_accuracy(trained, _ours(pgd(eps, steps), trained)) - expected) <= 0.01


def test_pgd_without_its_random_start_is_the_same_attack(trained: Trained) -> None:
    reference = torchattacks.PGD(trained.net, eps=16 / 255, alpha=2 / 255, steps=7, random_start=False)
    found = _ours(pgd(16 / 255, random_start=False), trained)
    torch.testing.assert_close(found, reference(trained.x, trained.y), rtol=0, atol=1e-5)


@pytest.mark.parametrize(("eps", "steps"), [(8 / 255, 7), (16 / 255, 20), (24 / 255, 20)])
def test_mia_is_as_strong(trained: Trained, eps: float, steps: int) -> None:
    reference = torchattacks.MIFGSM(trained.net, eps=eps, alpha=2 / 255, steps=steps)
    expected = _accuracy(trained, reference(trained.x, trained.y))
    assert 0.02 < expected < 0.98, "the comparison must not happen where every attack gives the same"
    assert abs(_accuracy(trained, _ours(mia(eps, steps), trained)) - expected) <= 0.01
