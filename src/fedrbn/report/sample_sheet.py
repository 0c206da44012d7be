"""The contact sheet: test images, their adversarial versions, and the network's predictions for both."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass

import torch
from PIL import Image
from torch import Tensor

from fedrbn.attacks import epsilon
from fedrbn.data.samples import Client
from fedrbn.evaluation.accuracy import logits_of
from fedrbn.federated.assemble import Assembly
from fedrbn.federated.prediction import predicting_branch
from fedrbn.randomness import generator
from fedrbn.runs.load import Trained
from fedrbn.types import Member, Role

SHOTS = 4
"""Images of each client on the sheet."""
LARGEST = 96
"""Maximum pixels per side; larger photographs are downscaled after the attack."""


@dataclass(frozen=True)
class Shot:
    """One test image, its adversarial version and their difference as data URIs, with predictions and probabilities."""

    clean: str
    attacked: str
    difference: str
    truth: str
    prediction: str
    confidence: float
    attacked_prediction: str
    attacked_confidence: float

    @property
    def right(self) -> bool:
        """Whether the clean image is classified correctly."""
        return self.prediction == self.truth

    @property
    def withstands(self) -> bool:
        """Whether the adversarial image is classified correctly."""
        return self.attacked_prediction == self.truth


@dataclass(frozen=True)
class Strip:
    """The shots of one client."""

    domain: str
    client: str
    role: str
    shots: tuple[Shot, ...]


def contact_sheet(trained: Trained, assembly: Assembly) -> tuple[Strip, ...]:
    """For each domain, its first ST client (or its first client) with its first test images, without selection."""
    federation = assembly.federation
    strips = []
    for domain in federation.domains:
        own = [
            (member, client)
            for member, client in zip(trained.plan.members, federation.clients, strict=True)
            if client.domain == domain
        ]
        member, client = next((pair for pair in own if pair[1].role is Role.ST), own[0])
        shots = _shots(trained, assembly, member, client)
        strips.append(Strip(federation.labels.get(domain, domain), client.id, client.role.value, shots))
    return tuple(strips)


def _shots(trained: Trained, assembly: Assembly, member: Member, client: Client) -> tuple[Shot, ...]:
    logits = logits_of(trained.adapted(client).eval(), predicting_branch(trained.plan, trained.state, member))
    x, y = client.test.pixels(slice(0, SHOTS))
    if not len(x):
        return ()
    random = generator(trained.experiment.run.seed, "report", "images", client.id)
    attacked = assembly.adversary(logits, x, y, random)
    with torch.no_grad():
        before, after = logits(x).softmax(1).max(1), logits(attacked).softmax(1).max(1)
    change = attacked - x
    bound = epsilon(assembly.adversary) or change.abs().max().item() or 1.0
    names = trained.classes
    return tuple(
        Shot(
            clean=as_uri(x[i]),
            attacked=as_uri(attacked[i]),
            difference=as_uri(0.5 + change[i] / (2 * bound)),
            truth=names[int(y[i])],
            prediction=names[int(before.indices[i])],
            confidence=float(before.values[i]),
            attacked_prediction=names[int(after.indices[i])],
            attacked_confidence=float(after.values[i]),
        )
        for i in range(len(x))
    )


def as_uri(pixels: Tensor) -> str:
    """An image [channels, height, width] in [0, 1] as a PNG data URI."""
    values = (pixels.detach().cpu().clamp(0, 1) * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()
    picture = Image.fromarray(values[:, :, 0] if values.shape[2] == 1 else values)
    picture.thumbnail((LARGEST, LARGEST))
    content = io.BytesIO()
    picture.save(content, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(content.getvalue()).decode('ascii')}"
