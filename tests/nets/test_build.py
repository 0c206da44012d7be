"""build(): networks by name or by reference, with weights decided by the seed alone."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import fedrbn.nets
from fedrbn.errors import NetworkError
from fedrbn.nets import NETWORKS, build, dual_bn, state_bytes
from fedrbn.nets.digits import digits_cnn

SHAPE = (3, 28, 28)

OWN = """
from torch import nn

class Net(nn.Module):
    def __init__(self, classes, channels=1):
        super().__init__()
        self.classes, self.channels = classes, channels

def everything(**settings):
    net = nn.Identity()
    net.settings = settings
    return net

def size_only(image_size, /, width=7):
    return None

def keyword_only(*, width):
    net = nn.Identity()
    net.width = width
    return net

def needs_more(classes, depth):
    return nn.Identity()

def not_a_network(classes):
    return classes

def linear(classes):
    return nn.Linear(2, classes)

def _network(**settings):
    net = nn.Identity()
    net.settings = settings
    return net

def _takes_classes(num_classes=1000):
    return _network(num_classes=num_classes)

def named(num_classes, in_channels, depth=3):
    return _network(num_classes=num_classes, in_channels=in_channels)

def hands_on(pretrained=False, **kwargs):
    return _takes_classes(**kwargs)

def hands_on_nothing(**kwargs):
    return _takes_nothing(**kwargs)

def _takes_nothing():
    return _network()

def half_named(classes, **kwargs):
    return _network(classes=classes, **kwargs)

def draws_and_fails():
    nn.Linear(2, 3)
    raise KeyError("half-way")

ready = nn.Linear(2, 3)
number = 5
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a module with networks, not imported yet."""
    name = "own_networks_of_test_build"
    (tmp_path / f"{name}.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    yield name
    sys.modules.pop(name, None)


def same(a: nn.Module, b: nn.Module) -> bool:
    first, second = a.state_dict(), b.state_dict()
    return first.keys() == second.keys() and all(torch.equal(first[key], second[key]) for key in first)


@pytest.mark.parametrize(("name", "side"), [("digits", 28), ("alexnet", 64), ("resnet18", 64)])
def test_every_name_builds_a_network_for_the_images(name: str, side: int) -> None:
    net = build(name, classes=7, width=1 / 16, image_shape=(1, side, side), seed=1).eval()
    assert net(torch.rand(2, 1, side, side, generator=torch.Generator().manual_seed(0))).shape == (2, 7)


def test_the_seed_alone_decides_the_weights() -> None:
    def made(seed: int) -> nn.Module:
        return build("digits", 10, 1 / 16, SHAPE, seed)

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(11)
        first = made(3)
        torch.manual_seed(12)
        second = made(3)
        torch.manual_seed(3)
        by_hand = digits_cnn(10, width=1 / 16)  # PyTorch's own initialisation after the same seed
    assert same(first, second)
    assert same(first, by_hand)
    assert not same(first, made(4))


def test_the_global_random_state_is_left_alone() -> None:
    before = torch.random.get_rng_state()
    build("digits", 10, 1 / 16, SHAPE, seed=3)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_the_global_random_state_is_left_alone_when_a_factory_fails(own: str) -> None:
    before = torch.random.get_rng_state()
    with pytest.raises(
        NetworkError, match=r"factory '.*:draws_and_fails' failed: KeyError: 'half-way' \(own_.*py, line "
    ):
        build(f"{own}:draws_and_fails", 10, 1.0, SHAPE, seed=3)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_the_first_import_of_a_module_that_draws_changes_nothing(own: str) -> None:
    before = torch.random.get_rng_state()
    first = build(f"{own}:linear", 4, 1.0, SHAPE, seed=3)  # the import makes `ready`, which draws
    assert torch.equal(torch.random.get_rng_state(), before)
    assert same(first, build(f"{own}:linear", 4, 1.0, SHAPE, seed=3))


def test_an_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"got network 'resnet'; expected one of digits, alexnet, .*'resnet18'\?"):
        build("resnet", 10, 1.0, SHAPE, seed=1)


def test_the_paper_networks_need_square_images() -> None:
    with pytest.raises(ValueError, match=r"got images of 28x32 pixels for network 'digits'; expected square"):
        build("digits", 10, 1.0, (3, 28, 32), seed=1)


def test_a_built_in_by_reference_is_the_same_network() -> None:
    assert same(
        build("fedrbn.nets.digits:digits_cnn", 10, 1 / 16, SHAPE, seed=5), build("digits", 10, 1 / 16, SHAPE, seed=5)
    )


def test_a_factory_gets_the_arguments_it_accepts(own: str) -> None:
    net = build(f"{own}:Net", 4, 0.5, (3, 20, 30), seed=1)  # a class is a factory; no image_size, so any shape
    assert (net.classes, net.channels) == (4, 3)
    everything = build(f"{own}:everything", 4, 0.5, (3, 20, 20), seed=1)
    assert everything.settings == {"num_classes": 4, "in_channels": 3}  # nothing that it does not name, but for these
    assert build(f"{own}:keyword_only", 4, 0.5, SHAPE, seed=1).width == 0.5


@pytest.mark.parametrize(
    ("attribute", "expected"),
    [
        ("named", {"num_classes": 4, "in_channels": 3}),
        ("hands_on", {"num_classes": 4}),  # the code behind it has no in_channels
        ("hands_on_nothing", {}),
        ("half_named", {"classes": 4, "in_channels": 3}),
    ],
)
def test_the_names_that_others_use_are_offered(own: str, attribute: str, expected: dict[str, int]) -> None:
    assert build(f"{own}:{attribute}", 4, 0.5, (3, 20, 20), seed=1).settings == expected


def test_objects_are_built_like_what_names_lead_to(own: str) -> None:
    module = importlib.import_module(own)
    assert build(module.Net, 4, 0.5, SHAPE, seed=1).classes == 4
    assert same(build(module.linear, 4, 0.5, SHAPE, seed=3), build(f"{own}:linear", 4, 0.5, SHAPE, seed=3))
    assert same(build(module.ready, 4, 0.5, SHAPE, seed=3), module.ready)
    assert build(module.ready, 4, 0.5, SHAPE, seed=3) is not module.ready


def test_networks_of_pytorchcv_work_by_name() -> None:
    pytest.importorskip("pytorchcv")
    net = build("pytorchcv.models.resnet:resnet10", 7, 1.0, (1, 32, 32), seed=1).eval()
    assert (net.features[0].conv.conv.in_channels, net.output.out_features) == (1, 7)


def test_the_size_of_a_network_is_known_before_it_is_made(own: str) -> None:
    made = build("digits", 10, 0.25, SHAPE, seed=1)
    assert state_bytes("digits", 10, 0.25, SHAPE) == sum(tensor.nbytes for tensor in made.state_dict().values())
    # At 256 pixels the first linear layer has 64 · 64 · 128 inputs and 2,048 outputs of 4 bytes.
    assert state_bytes("digits", 10, 1.0, (3, 256, 256)) > 64 * 64 * 128 * 2048 * 4
    assert state_bytes(f"{own}:linear", 10, 1.0, SHAPE) is None


def test_a_ready_network_is_copied_with_its_weights(own: str) -> None:
    first, second = (build(f"{own}:ready", 10, 1.0, SHAPE, seed) for seed in (1, 2))
    assert same(first, second)
    with torch.no_grad():
        first.weight.zero_()
    assert second.weight.abs().sum() > 0
    assert same(second, build(f"{own}:ready", 10, 1.0, SHAPE, seed=3))


@pytest.mark.parametrize(
    ("attribute", "message"),
    [
        (
            "needs_more",
            r"needs_more' with the signature \(classes, depth\).*'depth'.*Give its other arguments defaults",
        ),
        ("size_only", r"signature \(image_size, /, width=7\).*'image_size'"),
        ("not_a_network", r"got int from network factory .*not_a_network'; expected an nn.Module"),
        ("number", r"number', which is int; expected a factory or an nn.Module"),
        ("absent", r"absent"),
    ],
)
def test_what_cannot_be_a_network_is_refused(own: str, attribute: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(f"{own}:{attribute}", 10, 1.0, SHAPE, seed=1)


def test_public_names() -> None:
    assert {"digits", "alexnet", "resnet18"} <= set(NETWORKS)
    for name in ("dual", "single", "plain", "DualNet", "Affine"):
        assert getattr(fedrbn.nets, name) is getattr(dual_bn, name)
        assert name in fedrbn.nets.__all__
