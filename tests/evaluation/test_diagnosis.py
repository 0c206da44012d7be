"""What the check-list asks of a network, on networks for which the answers follow by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedrbn.data.samples import Samples
from fedrbn.evaluation.diagnosis import ABRUPT, INVISIBLE, Diagnosis
from fedrbn.nets.dual_bn import DualNet
from fedrbn.types import Branch

SIX = Samples(
    torch.tensor([0, 51, 102, 153, 204, 255], dtype=torch.uint8)[:, None, None, None].expand(-1, 1, 2, 2).contiguous(),
    torch.tensor([0, 1, 0, 1, 0, 1]),
)
"""Images of one level each, from black to white."""


class Network(nn.Module):
    """Logits (−s, s) for s = 3·x₁ + 2·x₂ + x₃ + ½·x₄ − 3, after a change: no direction of signs leaves s as it is."""

    def __init__(self, change: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([3.0, 2.0, 1.0, 0.5]))
        self.change = change

    def forward(self, x: Tensor) -> Tensor:
        score = (x.flatten(1) * self.weight).sum(1) - 3
        return self.change(torch.stack([-score, score], dim=1))


def answers(change: Callable[[Tensor], Tensor]) -> dict[str, list[bool]]:
    found = Diagnosis(Branch.CLEAN, samples=6)(DualNet(Network(change)).eval(), SIX, torch.Generator().manual_seed(1))
    return {name.removeprefix("check ").removesuffix("@clean"): answer.tolist() for name, answer in found.items()}


def reversed_gradient(z: Tensor) -> Tensor:
    return 2 * z.detach() - z


ALL, NONE = [True] * 6, [False] * 6
WRONG = [False, True, False, False, True, False]
"""Samples that are classified wrong: s = −3, −1.7, −0.4, 0.9, 2.2, 3.5 and the labels are 0, 1, 0, 1, 0, 1."""


def test_a_linear_network_has_all_properties() -> None:
    assert answers(lambda z: z) == dict.fromkeys(("repeatable", "smooth", "gradient", "directional"), ALL)


@pytest.mark.parametrize(
    ("change", "gradient", "directional"),
    [
        (torch.Tensor.detach, NONE, NONE),
        (torch.round, NONE, NONE),
        (reversed_gradient, ALL, NONE),
        # The softmax of ±4000 and more is exactly 0 or 1: right samples have no gradient, wrong ones do.
        (lambda z: 1e4 * z, WRONG, ALL),
    ],
    ids=["detached", "rounded", "reversed", "saturated"],
)
def test_what_a_fault_takes_away(
    change: Callable[[Tensor], Tensor], gradient: list[bool], directional: list[bool]
) -> None:
    found = answers(change)
    assert (found["repeatable"], found["gradient"], found["directional"]) == (ALL, gradient, directional)


def test_logits_that_change_from_call_to_call_are_not_repeatable() -> None:
    source = torch.Generator().manual_seed(1)
    assert answers(lambda z: z + torch.randn(z.shape, generator=source))["repeatable"] == NONE


def test_logits_that_jump_with_an_invisible_change_are_not_smooth() -> None:
    # An invisible change moves s by at least (3 − 2 − 1 + 0.5) · 1e-5 = 5e-6, so sin(1e9 · s) may be anything.
    jumps = answers(lambda z: z + 100 * torch.sin(1e9 * z.detach().double()).float())
    assert jumps["repeatable"] == ALL
    assert sum(jumps["smooth"]) <= 1
    # Six and a half is the most that s can move for each pixel: 6.5e-5, far below 5 % of a range of 2·0.4.
    assert 6.5 * INVISIBLE * 2 < ABRUPT * 2 * 0.4


def test_only_so_many_samples_are_looked_at() -> None:
    net = DualNet(Network(F.relu)).eval()
    found = Diagnosis(Branch.CLEAN, samples=2)(net, SIX, torch.Generator().manual_seed(1))
    assert {len(answer) for answer in found.values()} == {2}
