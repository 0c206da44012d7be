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
from fedrbn.nets.dual_bn import Affine, DualNet, dual, single
from fedrbn.nets.state import tensors
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
    if clean is noised:  # its gradient is then the sum of both
        inputs, again = ((clean.clone().requires_grad_(),) * 2 for _ in range(2))
    else:
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


@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(
    network=networks(),
    convert=st.sampled_from(sorted(CONVERSIONS)),
    size=st.integers(2, 5),
    modes=st.tuples(st.sampled_from(Stats), st.sampled_from(Stats)),
    seed=st.integers(0, 2**32 - 1),
)
def test_random_networks_with_the_same_images_in_both_branches(
    network: nn.Sequential, convert: str, size: int, modes: tuple[Stats, Stats], seed: int
) -> None:
    rng = torch.Generator().manual_seed(seed)
    net = CONVERSIONS[convert](network).double()
    randomise(net, rng)
    images = torch.rand(size, 2, 4, 4, generator=rng, dtype=torch.float64)
    assert_paired_equals_two_passes(net, images, images, modes, rng)


class Around(nn.Module):
    """A batch norm with a way around it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.norm(x)


@pytest.mark.parametrize(
    ("layers", "rows"),
    [
        ([nn.Flatten(), nn.Linear(3, 3), nn.BatchNorm1d(3)], 4),
        ([nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.BatchNorm1d(3))), nn.Linear(3, 2)], 4),
        ([nn.Linear(3, 3), Around()], 8),  # the input goes around the batch norm
        ([nn.Linear(3, 3), nn.Dropout(0.5), nn.BatchNorm1d(3)], 8),  # each branch has its own mask
    ],
    ids=["sequence", "nested", "around", "dropout"],
)
def test_the_same_images_are_doubled_at_the_first_batch_norm_where_that_is_proven(
    layers: list[nn.Module], rows: int
) -> None:
    """`rows` of 4 images reach the first layer: each once, or each for both branches."""
    net = dual(nn.Sequential(*layers)).double().eval()
    seen: list[int] = []
    net.network.register_forward_pre_hook(lambda _, args: seen.append(len(args[0])))
    images = torch.rand(4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    net.paired(images, images)
    assert seen == [rows]
    assert_paired_equals_two_passes(net, images, images, (Stats.BATCH, Stats.FROZEN), torch.Generator().manual_seed(1))


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
