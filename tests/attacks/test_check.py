"""One call before training: what your own attack must return, and how it is told what it does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Generator, Tensor

from fedrbn.attacks.check import check_attack
from fedrbn.errors import FedRBNError

X = torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def tried(attack: Callable[[Any, Tensor, Generator], Any]) -> None:
    check_attack("own:attack", attack, lambda pixels: pixels.sum((1, 2, 3)), X, torch.Generator().manual_seed(1))


def test_pixels_like_the_images_pass() -> None:
    random = torch.random.get_rng_state()
    tried(lambda _, x, __: (x + 0.1 * torch.randn(x.shape)).clamp(0, 1))
    assert torch.equal(torch.random.get_rng_state(), random)


@pytest.mark.parametrize(
    ("attack", "said"),
    [
        (
            lambda _, x, __: x[:1],
            r"got \[1, 3, 8, 8\] of torch.float32 from attack 'own:attack'; expected pixels \[\d, 3, 8, 8\]",
        ),
        (lambda *_: None, r"got NoneType from attack"),
        (lambda _, x, __: x * float("nan"), "not all finite"),
        (lambda _, x, __: x + 5, r"got pixels from 5\S* to 6\S* from attack .*Clamp them to \[0, 1\]\.$"),
        (
            lambda _, x, __: x.missing,
            r"your attack 'own:attack' failed: AttributeError: .* \(test_check.py, line \d+\)",
        ),
    ],
    ids=["shape", "none", "nan", "range", "fails"],
)
def test_what_cannot_train_is_refused_in_one_message(attack: Callable[..., Any], said: str) -> None:
    with pytest.raises(FedRBNError, match=said) as caught:
        tried(attack)
    assert "tensor(" not in str(caught.value)
