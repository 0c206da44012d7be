"""What training and evaluation see of data: images as bytes with labels, in domains, spread over clients."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedrbn.types import Role


@dataclass(frozen=True)
class Samples:
    """Labelled images held in memory: uint8 [n, channels, height, width] and int64 [n]."""

    images: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        if self.images.dtype != torch.uint8 or self.images.ndim != 4:
            raise ValueError(
                f"got images of {self.images.dtype} and shape {tuple(self.images.shape)}; expected uint8 pixels "
                "[n, channels, height, width]. Scale floats by 255 and convert with .to(torch.uint8)."
            )
        if self.labels.dtype != torch.int64 or self.labels.shape != self.images.shape[:1]:
            raise ValueError(
                f"got labels of {self.labels.dtype} and shape {tuple(self.labels.shape)}; expected int64 "
                f"[{len(self.images)}], one per image."
            )

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, index: Tensor) -> Samples:
        """The samples at these positions, in this order."""
        return Samples(self.images[index], self.labels[index])

    def pixels(self, index: Tensor | slice) -> tuple[Tensor, Tensor]:
        """A batch as the network takes it: float32 images in [0, 1] and their labels."""
        return self.images[index].to(torch.float32).div_(255), self.labels[index]


@dataclass(frozen=True)
class Domain:
    """One source of images, with its own look. `label` is how tables name it."""

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

    def __post_init__(self) -> None:
        names = [domain.name for domain in self.domains]
        if not names or len(set(names)) < len(names):
            raise ValueError(
                f"got domains {names} in data {self.name!r}; expected at least one, each with a name of its own."
            )
        shape = self.domains[0].train.images.shape[1:]
        for domain in self.domains:
            for part, samples in (("train", domain.train), ("test", domain.test)):
                self._check(samples, f"{part} part of {domain.name!r}", shape)

    def _check(self, samples: Samples, where: str, shape: torch.Size) -> None:
        if not len(samples):
            raise ValueError(f"got no images in the {where}; expected at least one. Add images or drop the domain.")
        if samples.images.shape[1:] != shape:
            raise ValueError(
                f"got images of shape {tuple(samples.images.shape[1:])} in the {where}; expected {tuple(shape)}, as in "
                f"the first domain. Resize them to one size."
            )
        lowest, highest = int(samples.labels.min()), int(samples.labels.max())
        if lowest < 0 or highest >= len(self.classes):
            raise ValueError(
                f"got labels from {lowest} to {highest} in the {where}; expected 0 to {len(self.classes) - 1}, "
                f"because there are {len(self.classes)} classes. Number the labels from 0, or name all classes."
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


@dataclass(frozen=True)
class Federation:
    """All users of an experiment, in a fixed order."""

    clients: tuple[Client, ...]
    domains: tuple[str, ...]
    labels: dict[str, str]
    """How tables name each domain."""
    classes: tuple[str, ...]
    equal_sizes: bool
    """False when users drew different numbers of images: then every user runs the same number of iterations."""

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height, width."""
        channels, height, width = self.clients[0].train.images.shape[1:]
        return channels, height, width
