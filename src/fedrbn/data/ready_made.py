"""Federations from partitions in the style of PyTorch, Hugging Face datasets and flwr-datasets.

    from flwr_datasets import FederatedDataset
    fleet = FederatedDataset(dataset="mnist", partitioners={"train": 10})
    def make(image_size):
        return from_partitions([fleet.load_partition(i) for i in range(10)], image_size=image_size)

A partition is anything with a length whose items are an image and a label: a pair, as in PyTorch's data sets, or a
mapping. None of these packages is imported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from fedrbn.data.federation import at_users
from fedrbn.data.imaging import to_channels_first
from fedrbn.data.partition import held_out
from fedrbn.data.samples import Client, Federation, Samples
from fedrbn.data.train_test import stratified
from fedrbn.errors import DataError
from fedrbn.randomness import derive
from fedrbn.types import Role


class ReadyPartition(Protocol):
    """One client's data: items such as (image, 3) or {"image": …, "label": 3}.

    An image is a Pillow image, an array [height, width] or [height, width, channels], or a tensor [height, width] or
    [channels, height, width]. Numbers are uint8, or floats from 0 to 1, which become uint8: the nearest of 256 levels.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


def from_partitions(
    partitions: Sequence[ReadyPartition],
    *,
    test: Sequence[ReadyPartition] | None = None,
    test_share: float = 0.2,
    validation: float = 0.25,
    domains: Sequence[str] | None = None,
    classes: Sequence[str] | None = None,
    at: float | tuple[str, ...] = 0.2,
    image_size: int | None = None,
    image: str = "image",
    label: str = "label",
    augment: bool = False,
    seed: int = 1,
) -> Federation:
    """A federation with one client for each partition, called `<domain>-0`, `<domain>-1`, …

    Args:
        partitions: The clients' data.
        test: Each client's test data; None holds out `test_share` of every class of its partition.
        test_share: The share of each class that is held out if `test` is None.
        validation: Part of the training data that is held out for model selection.
        domains: Each client's domain; None puts all clients in one domain, `all`.
        classes: Names of the classes; None takes those of the label's feature, or numbers.
        at: Who trains adversarially: a ratio of each domain's clients, or names of domains or clients.
        image_size: Images are resized to this side; None keeps their size, which must be the same for all.
        image: The key of the image in an item that is a mapping.
        label: The key of the label in an item that is a mapping.
        augment: Whether training images are flipped and rotated at random.
        seed: Decides which images are held out.
    """
    _check(len(partitions), None if test is None else len(test), test_share=test_share, validation=validation)
    names = _named(len(partitions), domains)
    members: dict[str, list[str]] = {}
    for user, domain in names.items():
        members.setdefault(domain, []).append(user)
    adversarial = at_users(members, at)
    clients = []
    for row, (user, domain) in enumerate(names.items()):
        train = _samples(partitions[row], f"partition {row}", image_size, image, label)
        if test is None:
            train, held = _split(train, test_share, seed, user)
        else:
            held = _samples(test[row], f"test partition {row}", image_size, image, label)
        order = torch.from_numpy(np.random.default_rng(derive(seed, "validation", user)).permutation(len(train)))
        cut = held_out(len(train), validation)
        role = Role.AT if user in adversarial else Role.ST
        clients.append(Client(user, domain, role, train.take(order[cut:]), train.take(order[:cut]), held, augment))
    return Federation(
        clients=tuple(clients),
        domains=tuple(members),
        labels={domain: domain for domain in members},
        classes=_class_names(partitions[0], label, clients) if classes is None else tuple(classes),
        equal_sizes=len({len(client.train) for client in clients}) == 1,
    )


def _check(count: int, tests: int | None, **shares: float) -> None:
    if tests is not None and tests != count:
        raise DataError(f"got {tests} test partitions for {count} partitions; expected one for each, in their order.")
    for name, share in shares.items():
        if not 0 <= share < 1:
            raise DataError(f"got {name} = {share}; expected at least 0 and less than 1, such as 0.2.")


def _named(count: int, domains: Sequence[str] | None) -> dict[str, str]:
    """The clients' ids, in order, and their domains."""
    given = ["all"] * count if domains is None else list(domains)
    if not count or len(given) != count:
        raise DataError(
            f"got {count} partitions and {len(given)} domains; expected at least one partition, and a domain for each."
        )
    return {f"{domain}-{given[:row].count(domain)}": domain for row, domain in enumerate(given)}


def _samples(partition: ReadyPartition, where: str, size: int | None, image: str, label: str) -> Samples:
    if not len(partition):
        raise DataError(f"got no items in {where}; expected at least one. Remove the partition.")
    pixels, labels = [], []
    for row in range(len(partition)):
        picture, number = _pair(partition[row], row, where, image, label)
        pixels.append(_pixels(picture, f"item {row} of {where}", size))
        if pixels[-1].shape != pixels[0].shape:
            raise DataError(
                f"got an image of {pixels[-1].shape[1]} x {pixels[-1].shape[0]} pixels as item {row} of {where}; "
                f"expected {pixels[0].shape[1]} x {pixels[0].shape[0]}, as the first. Set image_size."
            )
        labels.append(_label(number, f"item {row} of {where}"))
    return Samples(to_channels_first(np.stack(pixels)), torch.tensor(labels))


def _pair(item: object, row: int, where: str, image: str, label: str) -> tuple[object, object]:
    """The image and the label of an item."""
    if isinstance(item, tuple | list) and len(item) == 2:
        return item[0], item[1]
    if not isinstance(item, Mapping):
        shown = f"{type(item).__name__} of {len(item)}" if isinstance(item, tuple | list) else type(item).__name__
        raise DataError(
            f"got {shown} as item {row} of {where}; expected a pair (image, label), or a mapping such as "
            "{'image': …, 'label': 3}."
        )
    for key in (image, label):
        if key not in item:
            raise DataError(
                f"got an item with {', '.join(map(str, item))} in {where}; expected {key!r}. Name the keys: "
                'from_partitions(…, image="img", label="fine_label").'
            )
    return item[image], item[label]


def _label(value: object, where: str) -> int:
    """A class as a whole number, from any value that holds one number."""
    array = value.numpy(force=True) if isinstance(value, Tensor) else np.asarray(value)
    if array.size == 1 and array.dtype.kind in "iuf" and int(array.item()) == array.item():
        return int(array.item())
    shown = repr(value)[:40] if isinstance(value, str) else f"{array.dtype} of shape {array.shape}"
    raise DataError(f"got the label {shown} as {where}; expected the class as a whole number, from 0 on.")


def _pixels(image: object, where: str, size: int | None) -> NDArray[np.uint8]:
    """Any of the accepted kinds of image as RGB [height, width, 3]."""
    if isinstance(image, Tensor):
        image = image.movedim(0, -1).numpy(force=True) if image.ndim == 3 else image.numpy(force=True)
    if not isinstance(image, Image.Image):
        array = _as_bytes(np.asarray(image), where)
        grey_or_colour = array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (1, 3))
        if array.dtype != np.uint8 or not grey_or_colour or 0 in array.shape:
            raise DataError(
                f"got an image of {array.dtype} and shape {array.shape} as {where}; expected a Pillow image, or pixels "
                "[height, width] or [height, width, 3] (a tensor: [3, height, width]) as uint8, or floats from 0 to 1."
            )
        image = Image.fromarray(array[:, :, 0] if array.ndim == 3 and array.shape[2] == 1 else array)
    colour = image.convert("RGB")
    return np.asarray(colour if size is None else colour.resize((size, size), Image.Resampling.BILINEAR))


def _as_bytes(array: NDArray[Any], where: str) -> NDArray[Any]:
    """Floats from 0 to 1 as uint8, rounded; anything else as it is."""
    if array.dtype.kind != "f" or not array.size:
        return array
    low, high = float(array.min()), float(array.max())
    if not (low >= 0 and high <= 1):
        raise DataError(
            f"got float pixels from {low:.3g} to {high:.3g} as {where}; expected 0 to 1. Remove Normalize and "
            "similar transforms, because networks normalise themselves; divide pixels up to 255 by 255."
        )
    return (array * 255).round().astype(np.uint8)


def _split(samples: Samples, share: float, seed: int, user: str) -> tuple[Samples, Samples]:
    train, test = stratified(samples.labels.numpy(), share, derive(seed, "test", user))
    return samples.take(torch.from_numpy(train)), samples.take(torch.from_numpy(test))


def _class_names(first: ReadyPartition, label: str, clients: list[Client]) -> tuple[str, ...]:
    """Names from a Hugging Face `ClassLabel` or torchvision's `classes`, otherwise numbers up to the largest label."""
    features = getattr(first, "features", None)
    feature = features.get(label) if isinstance(features, Mapping) else None
    whole = getattr(first, "dataset", first)  # behind PyTorch's Subset
    for names in (getattr(feature, "names", None), getattr(whole, "classes", None)):
        if isinstance(names, list | tuple) and names:
            return tuple(map(str, names))
    labels = torch.cat([part.labels for client in clients for part in (client.train, client.validation, client.test)])
    return tuple(map(str, range(int(labels.max()) + 1)))
