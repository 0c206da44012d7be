"""A linear layer by oneDNN has the outputs and gradients of the ordinary one."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fedrbn.nets import linear

pytestmark = pytest.mark.skipif(not linear.available(), reason="this build of PyTorch has no oneDNN products")


def random(*shape: int, seed: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed)) - 0.5


def layer(inputs: int, outputs: int, *, bias: bool = True) -> nn.Linear:
    made = nn.Linear(inputs, outputs, bias=bias)
    with torch.no_grad():
        for number, parameter in enumerate(made.parameters()):
            parameter.copy_(random(*parameter.shape, seed=number))
    return made


def results(each: nn.Module, x: Tensor) -> list[Tensor | None]:
    """Output and gradients at input, weight and bias of a loss that weighs every output differently."""
    each.zero_grad()
    x = x.clone().requires_grad_()
    output = each(x)
    (output * random(*output.shape, seed=9).to(output)).sum().backward()
    return [output.detach(), x.grad, *(parameter.grad for parameter in each.parameters())]


@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(
    rows=st.integers(1, 40),
    inputs=st.integers(1, 70),
    outputs=st.integers(1, 70),
    bias=st.booleans(),
    transposed=st.booleans(),
)
def test_outputs_and_gradients(rows: int, inputs: int, outputs: int, bias: bool, transposed: bool) -> None:
    plain = layer(inputs, outputs, bias=bias)
    quick = linear.with_onednn(copy.deepcopy(plain))
    x = random(inputs, rows, seed=7).t() if transposed else random(rows, inputs, seed=7)
    torch.testing.assert_close(results(quick, x), results(plain, x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "x",
    [random(3, 5, seed=1).double(), random(2, 3, 5, seed=1), random(5, seed=1), torch.empty(0, 5)],
    ids=["double", "three axes", "one axis", "no rows"],
)
def test_what_onednn_does_not_take_is_computed_as_ever(x: Tensor) -> None:
    plain = layer(5, 4).to(x.dtype)
    assert torch.equal(linear.with_onednn(plain)(x), plain(x))


@pytest.mark.usefixtures("bfloat16")
@pytest.mark.parametrize("bias", [True, False])
def test_in_autocast_it_is_the_ordinary_layer(bias: bool) -> None:
    """600 outputs, so that the gradient of the weight is computed in several blocks."""
    plain, x = layer(5, 600, bias=bias), random(3, 5, seed=1)
    with torch.autocast("cpu", torch.bfloat16):
        found, expected = (results(each, x) for each in (linear.with_onednn(copy.deepcopy(plain)), plain))
    assert found[0] is not None
    assert found[0].dtype == torch.bfloat16
    assert expected[0] is not None
    assert torch.equal(found[0], expected[0])
    assert all(part is None or part.dtype == torch.float32 for part in found[1:])
    torch.testing.assert_close(found, expected, rtol=2.0**-7, atol=2.0**-10)


def test_only_the_gradients_that_are_wanted_are_computed() -> None:
    quick = linear.with_onednn(layer(5, 4)).requires_grad_(False)
    found = results(quick, random(3, 5, seed=1))
    assert found[1] is not None
    assert found[2:] == [None, None]


def test_the_parameters_are_the_very_same() -> None:
    plain = layer(5, 4)
    quick = linear.with_onednn(plain)
    assert quick.weight is plain.weight
    assert quick.bias is plain.bias
