"""Federations that users bring: ready-made ones, and partitions in the style of Hugging Face and flwr-datasets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import TensorDataset

from fedrbn.config import FederationConfig, FirstDomains, Partition
from fedrbn.data.federation import build, pooled
from fedrbn.data.ready_made import from_partitions
from fedrbn.data.samples import Client, DataSet, Federation, Samples
from fedrbn.errors import DataError
from fedrbn.types import Role


class Rows:
    """What the two packages have in common: a length and items that are mappings."""

    def __init__(self, rows: list[dict[str, Any]], names: list[str] | None = None) -> None:
        self.rows = rows
        if names:
            self.features = {"label": SimpleNamespace(names=names)}

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        if not 0 <= index < len(self.rows):
            raise IndexError(index)
        return self.rows[index]


def _flat(value: int, label: int, side: int = 4) -> dict[str, Any]:
    return {"image": Image.new("L", (side, side), value), "label": label}


def _rows(count: int, offset: int = 0) -> Rows:
    """Flat images whose brightness is their number, of two classes in turn."""
    return Rows([_flat(offset + i, i % 2) for i in range(count)])


def _numbers(samples: Samples) -> list[int]:
    return samples.images[:, 0, 0, 0].tolist()


def test_each_partition_becomes_a_client() -> None:
    # Of 20 images 2 of each class of 10 are tested (20 %); of the other 16 a quarter is for validation.
    fleet = from_partitions([_rows(20), _rows(20, 20), _rows(20, 40)], domains=["a", "b", "a"], at=("b",))
    assert [client.id for client in fleet.clients] == ["a-0", "b-0", "a-1"]
    assert [client.role for client in fleet.clients] == [Role.ST, Role.AT, Role.ST]
    assert fleet.domains == ("a", "b")
    assert fleet.classes == ("0", "1")
    assert fleet.equal_sizes
    for number, client in enumerate(fleet.clients):
        assert [len(part) for part in (client.train, client.validation, client.test)] == [12, 4, 4]
        assert client.test.labels.bincount().tolist() == [2, 2]
        everything = [n for part in (client.train, client.validation, client.test) for n in _numbers(part)]
        assert sorted(everything) == list(range(20 * number, 20 * number + 20))
        for part in (client.train, client.validation, client.test):
            assert part.labels.tolist() == [n % 2 for n in _numbers(part)]


def test_the_seed_decides_what_is_held_out() -> None:
    first, again, other = (from_partitions([_rows(30)], at=0, seed=seed).clients[0] for seed in (1, 1, 2))
    assert _numbers(first.test) == _numbers(again.test)
    assert _numbers(first.validation) == _numbers(again.validation)
    assert _numbers(first.test) != _numbers(other.test)


def test_given_test_partitions_are_kept() -> None:
    fleet = from_partitions([_rows(8), _rows(12)], test=[_rows(3, 100), _rows(2, 200)], validation=0, at=0)
    assert [_numbers(client.test) for client in fleet.clients] == [[100, 101, 102], [200, 201]]
    assert [sorted(_numbers(client.train)) for client in fleet.clients] == [list(range(8)), list(range(12))]
    assert not fleet.equal_sizes


@pytest.mark.parametrize(
    "make",
    [
        Image.fromarray,
        lambda pixels: pixels,
        lambda pixels: torch.from_numpy(pixels).permute(2, 0, 1),
    ],
    ids=["pillow", "array", "tensor"],
)
def test_kinds_of_colour_images(make: Callable[[np.ndarray], object]) -> None:
    pixels = np.random.default_rng(0).integers(256, size=(4, 5, 3), dtype=np.uint8)
    fleet = from_partitions([Rows([{"image": make(pixels), "label": 0}] * 4)], validation=0, at=0)
    assert fleet.image_shape == (3, 4, 5)
    assert np.array_equal(fleet.clients[0].train.images[0].permute(1, 2, 0).numpy(), pixels)


@pytest.mark.parametrize(
    "image",
    [np.full((3, 5), 7, np.uint8), np.full((3, 5, 1), 7, np.uint8), torch.full((1, 3, 5), 7, dtype=torch.uint8)],
)
def test_grey_images_become_rgb(image: object) -> None:
    fleet = from_partitions([Rows([{"image": image, "label": 0}] * 4)], validation=0, at=0)
    assert fleet.image_shape == (3, 3, 5)
    assert fleet.clients[0].train.images.unique().tolist() == [7]


def test_other_keys_class_names_and_sizes() -> None:
    rows = [{"img": Image.new("RGB", (8 + i, 8)), "fine": i % 2, "coarse": 0} for i in range(6)]
    fleet = from_partitions([Rows(rows)], image="img", label="fine", image_size=6, classes=["cat", "dog"], at=0)
    assert fleet.image_shape == (3, 6, 6)
    assert fleet.classes == ("cat", "dog")


def test_class_names_come_from_the_feature() -> None:
    fleet = from_partitions([Rows([_flat(i, 0) for i in range(6)], names=["zero", "one", "two"])], at=0)
    assert fleet.classes == ("zero", "one", "two")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"partitions": []}, "got 0 partitions"),
        ({"partitions": [_rows(0)]}, "got no items in partition 0"),
        ({"domains": ["a", "b"]}, "got 1 partitions and 2 domains"),
        ({"test": []}, "got 0 test partitions for 1 partitions"),
        ({"validation": 1.0}, "got validation = 1.0; expected at least 0 and less than 1"),
        ({"test_share": -0.1}, "got test_share = -0.1"),
        ({"image": "img"}, r"got an item with image, label in partition 0; expected 'img'.*Name the keys"),
        (
            {"partitions": [Rows([_flat(0, 0), _flat(1, 1, side=5)])]},
            "got an image of 5 x 5 .*expected 4 x 4.*image_size",
        ),
        (
            {"partitions": [Rows([{"image": np.full((4, 4), 2.0), "label": 0}])]},
            "got float pixels from 2 to 2 as item 0 of partition 0; expected 0 to 1. Remove Normalize",
        ),
        ({"partitions": [Rows([{"image": None, "label": 0}])]}, "image of object"),
        ({"at": ("zebra",)}, "got 'zebra' in federation.at"),
        ({"classes": ["only"]}, "labels from 0 to 1 in the train part of client 'all-0'"),
        ({"partitions": [_rows(2)], "validation": 0}, "got 1 training image|no images in the test"),
    ],
)
def test_mistakes_are_explained(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_partitions(**({"partitions": [_rows(20)], "at": 0} | arguments))


@pytest.mark.parametrize(
    "image",
    [
        torch.full((3, 4, 4), 51, dtype=torch.uint8),
        torch.full((3, 4, 4), 0.2),  # 0.2 · 255 = 51
        torch.full((1, 4, 4), 0.2, dtype=torch.float64),
        np.full((4, 4, 3), 0.2, np.float32),
        Image.new("RGB", (4, 4), (51, 51, 51)),
    ],
)
def test_ordinary_pytorch_data_sets_are_taken(image: object) -> None:
    pairs = [(image, torch.tensor(row % 2)) for row in range(10)]
    whole = SimpleNamespace(classes=["cat", "dog"])
    part = Rows(pairs)  # type: ignore[arg-type]
    part.dataset = whole  # type: ignore[attr-defined]
    fleet = from_partitions([part], at=0)
    assert fleet.image_shape == (3, 4, 4)
    assert fleet.clients[0].train.images.unique().tolist() == [51]
    assert len(fleet.clients[0].train) == 6  # ten, less one of each class to test, less two of eight to validate
    assert fleet.classes == ("cat", "dog")


def test_a_tensor_data_set_of_pytorch() -> None:
    images, labels = torch.arange(10).float()[:, None, None, None].expand(-1, 3, 2, 2) / 255, torch.arange(10) % 2
    fleet = from_partitions([TensorDataset(images, labels)], validation=0, at=0)
    found = {*_numbers(fleet.clients[0].train), *_numbers(fleet.clients[0].test)}
    assert found == set(range(10))


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ((torch.rand(3, 4, 4), torch.rand(5)), r"got the label float32 of shape \(5,\) as item 0 of partition 0"),
        ((torch.rand(3, 4, 4), "cat"), r"got the label 'cat' as item 0"),
        ((torch.rand(3, 4, 4), 1, 2), r"got tuple of 3 as item 0 of partition 0; expected a pair"),
        (torch.rand(3, 4, 4), r"got Tensor as item 0"),
        ((torch.randn(3, 40, 40) * 9, 1), r"got float pixels from -.*Remove Normalize"),
        ((torch.rand(3, 4, 4).long(), 1), r"got an image of int64 and shape \(4, 4, 3\)"),
    ],
)
def test_errors_never_print_tensors(item: Any, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        from_partitions([Rows([item])], at=0)
    assert "tensor(" not in str(caught.value)
    assert len(str(caught.value)) < 250


@pytest.fixture
def fleet() -> Federation:
    return from_partitions([_rows(20, 20 * i) for i in range(5)], domains=["a", "a", "a", "b", "b"], at=("a-1",))


def _at(federation: Federation) -> list[str]:
    return [client.id for client in federation.clients if client.role is Role.AT]


def test_a_ready_federation_keeps_its_clients_and_roles(fleet: Federation) -> None:
    assert build(fleet, FederationConfig(), seed=1) == fleet


@pytest.mark.parametrize(
    ("at", "expected"),
    [
        ((), []),
        (("b",), ["b-0", "b-1"]),
        (("a-2", "b-0"), ["a-2", "b-0"]),
        (0.5, ["a-0", "a-1", "b-0"]),  # of three 1.5, which rounds to the even 2; of two one
        (FirstDomains(ratio=1, domains=1), ["a-0", "a-1", "a-2"]),
    ],
)
def test_the_config_may_choose_other_roles(fleet: Federation, at: object, expected: list[str]) -> None:
    built = build(fleet, FederationConfig(at=at), seed=1)  # type: ignore[arg-type]
    assert _at(built) == expected
    assert [client.train for client in built.clients] == [client.train for client in fleet.clients]


@pytest.mark.parametrize(
    "settings",
    [{"users_per_domain": 3}, {"fraction": 1.0}, {"validation": 0.1}, {"test_samples": 5}, {"min_samples": 8},
     {"partition": Partition(labels={"concentration": 1})}],
)  # fmt: skip
def test_a_ready_federation_is_not_divided_again(fleet: Federation, settings: dict[str, Any]) -> None:
    with pytest.raises(
        ValueError, match=rf"got federation.{next(iter(settings))} with data that are already a federation"
    ):
        build(fleet, FederationConfig(**settings), seed=1)


def test_participants_may_be_set(fleet: Federation) -> None:
    assert build(fleet, FederationConfig(participants=2), seed=1) == fleet


def test_domains_can_be_chosen(fleet: Federation, numbered: Callable[..., DataSet]) -> None:
    chosen = fleet.only(("b",))
    assert [client.id for client in chosen.clients] == ["b-0", "b-1"]
    assert chosen.domains == ("b",)
    assert [domain.name for domain in numbered(20, 30, 40).only(("d2", "d0")).domains] == ["d2", "d0"]
    for data in (fleet, numbered(20)):
        with pytest.raises(ValueError, match="got domain 'zebra'; expected one of"):
            data.only(("zebra",))


def test_pooled_data_are_whole(fleet: Federation) -> None:
    data = pooled(fleet, "mine")
    assert [domain.name for domain in data.domains] == ["a", "b"]
    numbers = [_numbers(part) for domain in data.domains for part in (domain.train, domain.test)]
    assert sorted(numbers[0] + numbers[1]) == list(range(60))
    assert sorted(numbers[2] + numbers[3]) == list(range(60, 100))


def test_augmentation_reaches_the_clients(numbered: Callable[..., DataSet]) -> None:
    for wanted in (True, False):
        data = replace(numbered(60), augment=wanted)
        built = build(data, FederationConfig(users_per_domain=2, fraction=1, at=0), seed=1)
        assert {client.augment for client in built.clients} == {wanted}
    assert from_partitions([_rows(20)], at=0, augment=True).clients[0].augment


def _client(name: str = "a", domain: str = "d", train: int = 4, **changes: Samples) -> Client:
    def part(count: int) -> Samples:
        return Samples(torch.zeros(count, 3, 4, 4, dtype=torch.uint8), torch.zeros(count, dtype=torch.int64))

    return replace(Client(name, domain, Role.ST, part(train), part(0), part(2)), **changes)


_OTHER = Samples(torch.zeros(3, 3, 5, 5, dtype=torch.uint8), torch.zeros(3, dtype=torch.int64))


@pytest.mark.parametrize(
    ("clients", "message"),
    [
        ((), "expected at least one"),
        ((_client(), _client()), "each with a unique id"),
        ((_client(domain="e"),), r"clients of the domains \['e'\] in a federation of \['d'\]"),
        ((_client(train=1),), "got 1 training image for client 'a'"),
        ((_client(train=0),), "no images in the train part of client 'a'"),
        ((_client(), _client("b", test=_OTHER)), r"\(3, 5, 5\) in the test part of client 'b'"),
        ((_client(validation=_OTHER),), r"\(3, 5, 5\) in the validation part"),
    ],
)
def test_a_federation_must_be_coherent(clients: tuple[Client, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Federation(clients, ("d",), {"d": "D"}, ("x",), equal_sizes=True)
