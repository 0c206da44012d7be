"""One joined pass equals two passes: outputs, gradients and statistics, for networks nobody thought of."""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fedrbn.nets import build
from fedrbn.nets.dual_bn import Affine, DualNet, dual, single, tensors
from fedrbn.types import Branch, Stats

CONVERSIONS: dict[str, Callable[[nn.Module], DualNet]] = {
    "shared": dual,
    "separate": lambda net: dual(net, Affine.SEPARATE),
    "single": single,
}


def norms(kind: type[nn.Module], features: int) -> st.SearchStrategy[nn.Module]:
    return st.builds(
        kind,
        st.just(features),
        eps=st.sampled_from([1e-5, 1e-2]),
        momentum=st.sampled_from([None, 0.0, 0.1, 1.0]),
        affine=st.booleans(),
    )


@st.composite
def networks(draw: st.DrawFn) -> nn.Sequential:
    """Convolutions with batch norm over 4x4 images of 2 channels, then linear layers with batch norm."""
    channels = [2, *draw(st.lists(st.integers(1, 3), max_size=2))]
    hidden = [channels[-1] * 16, *draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))]
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(channels):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), draw(norms(nn.BatchNorm2d, outputs)), nn.Tanh()]
    layers.append(nn.Flatten())
    for inputs, outputs in pairwise(hidden):
        layers += [nn.Linear(inputs, outputs), draw(norms(nn.BatchNorm1d, outputs)), nn.Tanh()]
    return nn.Sequential(*layers)


def randomise(net: nn.Module, rng: torch.Generator) -> None:
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(torch.rand(parameter.shape, generator=rng, dtype=torch.float64) * 2 - 1)
        for buffer in net.buffers():
            if buffer.is_floating_point():
                buffer.copy_(torch.rand(buffer.shape, generator=rng, dtype=torch.float64) + 0.5)


def assert_paired_equals_two_passes(
    net: DualNet, clean: Tensor, noised: Tensor, modes: tuple[Stats, Stats], rng: torch.Generator
) -> None:
    """In double precision, with a random weight on every logit; the two passes go back before the next comes."""
    joined, apart = net.double(), copy.deepcopy(net).double()
    inputs, again = (tuple(part.clone().requires_grad_() for part in (clean, noised)) for _ in range(2))

    outputs = joined.paired(*inputs, *modes)
    weights = [torch.rand(output.shape, generator=rng, dtype=torch.float64) for output in outputs]
    sum((output * weight).sum() for output, weight in zip(outputs, weights, strict=True)).backward()

    for part, output, branch, stats, weight in zip(again, outputs, Branch, modes, weights, strict=True):
        expected = apart(part, branch, stats)
        torch.testing.assert_close(output, expected, rtol=1e-7, atol=1e-9)
        (expected * weight).sum().backward()
    close = {"rtol": 1e-6, "atol": 1e-8}
    torch.testing.assert_close([part.grad for part in inputs], [part.grad for part in again], **close)
    torch.testing.assert_close(
        {name: parameter.grad for name, parameter in joined.named_parameters()},
        {name: parameter.grad for name, parameter in apart.named_parameters()},
        **close,
    )
    torch.testing.assert_close(tensors(joined), tensors(apart), **close)


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(
    network=networks(),
    convert=st.sampled_from(sorted(CONVERSIONS)),
    sizes=st.tuples(st.integers(2, 5), st.integers(2, 5)),
    modes=st.tuples(st.sampled_from(Stats), st.sampled_from(Stats)),
    seed=st.integers(0, 2**32 - 1),
)
def test_random_networks(
    network: nn.Sequential, convert: str, sizes: tuple[int, int], modes: tuple[Stats, Stats], seed: int
) -> None:
    rng = torch.Generator().manual_seed(seed)
    net = CONVERSIONS[convert](network).double()
    randomise(net, rng)
    clean, noised = (torch.rand(size, 2, 4, 4, generator=rng, dtype=torch.float64) for size in sizes)
    assert_paired_equals_two_passes(net, clean, noised, modes, rng)


@pytest.mark.parametrize("convert", CONVERSIONS)
@pytest.mark.parametrize(
    "modes", [(Stats.BATCH, Stats.BATCH), (Stats.FROZEN, Stats.BATCH), (Stats.BATCH, Stats.FROZEN)]
)
@pytest.mark.parametrize("name", ["digits", "resnet18"])
def test_paper_networks(name: str, modes: tuple[Stats, Stats], convert: str) -> None:
    rng = torch.Generator().manual_seed(0)
    net = CONVERSIONS[convert](build(name, classes=10, width=1 / 16, image_shape=(3, 28, 28), seed=1))
    clean, noised = (torch.rand(size, 3, 28, 28, generator=rng, dtype=torch.float64) for size in (5, 2))
    assert_paired_equals_two_passes(net, clean, noised, modes, rng)
