"""The data of a newcomer: its own images, labelled or not, that no participant has trained on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedrbn import data
from fedrbn.config import plugins
from fedrbn.data.samples import DataSet, Samples
from fedrbn.data.sets.folder import SUFFIXES, decode
from fedrbn.errors import OnboardingError
from fedrbn.federated.assemble import assemble
from fedrbn.randomness import generator
from fedrbn.runs.load import Trained


@dataclass(frozen=True)
class NewcomerData:
    """A newcomer's images."""

    domain: str
    images: Tensor
    """uint8, used without labels."""
    labelled: Samples | None
    """The same images with labels, if they have any."""
    test: Samples | None


def newcomer_data(trained: Trained, source: str, domain: str | None = None) -> NewcomerData:
    """The newcomer's images from a data set, a folder `root/<domain>/<class>/*`, or a folder of unlabelled images.

    Where the run was trained on the same data and domain, the images that participants trained on are left out.
    """
    folder = Path(source).expanduser()
    if folder.is_dir():
        pictures = sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)
        if pictures:
            return NewcomerData(domain or folder.name, _decoded(pictures, trained.image_shape), None, None)
    dataset = data.load(source, trained.image_shape[1])
    if not isinstance(dataset, DataSet):
        raise OnboardingError(f"got {source!r}, a federation; expected a data set or a folder with images.")
    if dataset.classes != trained.classes:
        raise OnboardingError(
            f"got classes {', '.join(dataset.classes)}; expected those of the run: {', '.join(trained.classes)}. "
            "Name the class folders like them."
        )
    known = {item.name: item for item in dataset.domains}
    if domain is None and len(known) > 1:
        raise OnboardingError(f"got no --domain; expected one of {', '.join(known)}, the domains of {source!r}.")
    name = domain or next(iter(known))
    if name not in known:
        raise plugins.unknown("domain", name, known)
    labelled = _unseen(trained, source, known[name].train, name)
    return NewcomerData(name, labelled.images, labelled, known[name].test)


def some(samples: Samples, count: int | None, seed: int = 0) -> Samples:
    """`count` random samples; all if `count` is None."""
    if count is None or count >= len(samples):
        return samples
    return samples.take(torch.randperm(len(samples), generator=generator(seed, "onboard", "test"))[:count])


def _decoded(pictures: list[Path], shape: tuple[int, int, int]) -> Tensor:
    if shape[0] != 3 or shape[1] != shape[2]:
        raise OnboardingError(f"got a run on images of shape {shape}; expected square RGB images, to read image files.")
    return torch.from_numpy(np.stack([decode(path, str(path), shape[1]) for path in pictures])).permute(0, 3, 1, 2)


def _unseen(trained: Trained, source: str, samples: Samples, domain: str) -> Samples:
    """The samples without those that participants of the run used for training or validation."""
    took_part = any(member.domain == domain for member in trained.plan.members)
    if source != trained.experiment.data.name or not took_part:
        return samples
    used = {
        image.numpy().tobytes()
        for client in assemble(trained.experiment).federation.clients
        if client.domain == domain
        for part in (client.train, client.validation)
        for image in part.images
    }
    fresh = [row for row, image in enumerate(samples.images) if image.numpy().tobytes() not in used]
    if len(fresh) < 2:
        raise OnboardingError(
            f"got {domain!r} of {source!r}, whose training images all belong to participants; expected some that do "
            "not. Choose a domain that was not part of the run, or other images."
        )
    return samples.take(torch.tensor(fresh))
