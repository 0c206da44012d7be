"""Data for training and evaluation: images as bytes with labels, in domains, spread over clients."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedrbn.config import plugins
from fedrbn.errors import DataError
from fedrbn.types import Role

_LEAST_TRAINING = 2
LEAST_CLASSES = 2
"""With one class every network has an accuracy of 100 %."""


@dataclass(frozen=True)
class Samples:
    """Labelled images held in memory: uint8 [n, channels, height, width] and int64 [n]."""

    images: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        if self.images.dtype != torch.uint8 or self.images.ndim != 4:
            raise DataError(
                f"got images of {self.images.dtype} and shape {tuple(self.images.shape)}; expected uint8 pixels "
                "[n, channels, height, width]. Scale floats by 255 and convert with .to(torch.uint8)."
            )
        if self.labels.dtype != torch.int64 or self.labels.shape != self.images.shape[:1]:
            raise DataError(
                f"got labels of {self.labels.dtype} and shape {tuple(self.labels.shape)}; expected int64 "
                f"[{len(self.images)}], one per image."
            )

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, index: Tensor) -> Samples:
        """The samples at these positions, in this order."""
        return Samples(self.images[index], self.labels[index])

    def first(self, count: int | None) -> Samples:
        """The first `count` samples; all of them for None."""
        return Samples(self.images[:count], self.labels[:count])

    def pixels(self, index: Tensor | slice) -> tuple[Tensor, Tensor]:
        """A batch as the network takes it: float32 images in [0, 1] and their labels."""
        return self.images[index].to(torch.float32).div_(255), self.labels[index]


@dataclass(frozen=True)
class Domain:
    """One source of images, with its own style. `label` is its name in tables."""

    name: str
    train: Samples
    test: Samples
    label: str


@dataclass(frozen=True)
class DataSet:
    """Several domains with the same classes."""

    name: str
    domains: tuple[Domain, ...]
    classes: tuple[str, ...]
    augment: bool = False
    """Whether training images are flipped and rotated at random, as FedBN does with photos; held-out ones never are."""
    remarks: tuple[str, ...] = ()
    """Notes for users of the data, such as files that were left out."""

    def __post_init__(self) -> None:
        names = [domain.name for domain in self.domains]
        if not names or len(set(names)) < len(names):
            raise DataError(
                f"got domains {names} in data {self.name!r}; expected at least one, each with a unique name."
            )
        shape = self.domains[0].train.images.shape[1:]
        for domain in self.domains:
            for part, samples in (("train", domain.train), ("test", domain.test)):
                _check(samples, f"{part} part of {domain.name!r}", shape, len(self.classes))

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height, width."""
        return _shape(self.domains[0].train)

    def only(self, domains: tuple[str, ...]) -> DataSet:
        """The same data with these domains, in this order."""
        known = {domain.name: domain for domain in self.domains}
        return replace(self, domains=tuple(known[name] for name in _known(domains, known)))


def _shape(samples: Samples) -> tuple[int, int, int]:
    channels, height, width = samples.images.shape[1:]
    return channels, height, width


def _known(names: tuple[str, ...], known: Collection[str]) -> tuple[str, ...]:
    for name in names:
        if name not in known:
            raise plugins.unknown("domain", name, known, own=False)
    return names


def _check(samples: Samples, where: str, shape: torch.Size, classes: int) -> None:
    """Refuse samples without images, or with another image shape, or with labels outside the classes."""
    if not len(samples):
        raise DataError(f"got no images in the {where}; expected at least one. Add images or remove it.")
    if samples.images.shape[1:] != shape:
        raise DataError(
            f"got images of shape {tuple(samples.images.shape[1:])} in the {where}; expected {tuple(shape)}, as in "
            "the first. Resize them to one size."
        )
    lowest, highest = int(samples.labels.min()), int(samples.labels.max())
    if lowest < 0 or highest >= classes:
        raise DataError(
            f"got labels from {lowest} to {highest} in the {where}; expected 0 to {classes - 1}, "
            f"because there are {classes} classes. Number the labels from 0, or name all classes."
        )


@dataclass(frozen=True)
class Client:
    """One user of the federation and its private data."""

    id: str
    domain: str
    role: Role
    train: Samples
    validation: Samples
    test: Samples
    augment: bool = False
    """Whether its training images are flipped and rotated at random; see `DataSet.augment`."""


@dataclass(frozen=True)
class Federation:
    """All users of an experiment, in a fixed order."""

    clients: tuple[Client, ...]
    domains: tuple[str, ...]
    labels: dict[str, str]
    """The name of each domain in tables."""
    classes: tuple[str, ...]
    equal_sizes: bool
    """False when users drew different numbers of images: then every user runs the same number of iterations."""
    remarks: tuple[str, ...] = ()
    """See `DataSet.remarks`."""

    def __post_init__(self) -> None:
        ids = [client.id for client in self.clients]
        if not ids or len(set(ids)) < len(ids):
            raise DataError(f"got clients {ids} in a federation; expected at least one, each with a unique id.")
        for name in ids:
            if not name or name.startswith(".") or any(mark in name for mark in "/\\\0"):
                raise DataError(
                    f"got client id {name!r}; expected a name that can be part of a file name: not empty, no "
                    "leading dot, no slash. Rename the client or its domain."
                )
        domains = dict.fromkeys(client.domain for client in self.clients)
        if set(domains) != set(self.domains) or not set(domains) <= set(self.labels):
            raise DataError(
                f"got clients of the domains {[*domains]} in a federation of {[*self.domains]} with labels for "
                f"{[*self.labels]}; expected the same. List every client's domain once, and label it."
            )
        shape = self.clients[0].train.images.shape[1:]
        for client in self.clients:
            for part in ("train", "validation", "test"):
                samples: Samples = getattr(client, part)
                if part != "validation" or len(samples):  # validation images are optional
                    _check(samples, f"{part} part of client {client.id!r}", shape, len(self.classes))
            if len(client.train) < _LEAST_TRAINING:
                raise DataError(
                    f"got 1 training image for client {client.id!r}; expected at least {_LEAST_TRAINING}, because "
                    "batch norm cannot train on one. Add images, or remove the client."
                )

    def only(self, domains: tuple[str, ...]) -> Federation:
        """The same federation with the clients of these domains, in this order."""
        chosen = _known(domains, self.domains)
        clients = tuple(client for domain in chosen for client in self.clients if client.domain == domain)
        return replace(self, clients=clients, domains=chosen)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height, width."""
        return _shape(self.clients[0].train)
