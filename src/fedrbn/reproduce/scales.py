"""Four sizes of every experiment: the paper's, two that a CPU can train, and one that only tests that everything runs.

A scale makes a run smaller without changing the subject of the experiment: users and their roles, domains, shares of
participants, batch size and local epochs stay as declared.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from fedrbn.config import Experiment
from fedrbn.data import AVAILABLE
from fedrbn.federated.options import resolved

PHOTOGRAPH = 64
"""Images with this side or more are photographs: few and large, so their size is reduced, not their number."""


@dataclass(frozen=True)
class Scale:
    """Factors on the paper's settings."""

    name: str
    about: str
    """The description in the caption of a table."""
    width: float = 1.0
    fraction: float = 1.0
    """Factor on the share of images, unless that leaves a user with fewer than `least_images` to train on."""
    least_images: int = 8
    rounds: float = 1.0
    """Factor on rounds, on those of warm-up, and on the iterations of fine-tuning."""
    lr: float = 1.0
    """Factor on a constant learning rate, including a method's own: fewer steps need to be larger."""
    clip: float | None = None
    """Norm to which the gradient of PNC is clipped (Algorithm 3) unless the experiment sets it: large steps need it."""
    precision: Literal["auto"] | None = None
    """The value of `run.precision`."""
    validations: int | None = None
    """How often a run is validated; None means after every round."""
    steps: int | None = None
    """Steps of the attack in training, validation and test."""
    test_samples: int | None = None
    """Test images per user."""
    photograph: int | None = None
    """Side of photographs in pixels."""
    subset: int = 10
    """Test images per user for AutoAttack and local search."""
    attacks: Mapping[str, str] = field(default_factory=dict)
    """Attacks of the paper's table that are shortened, by their text."""


SCALES: Mapping[str, Scale] = {
    "smoke": Scale(
        "smoke",
        "a quarter of the channels, 8 to 16 training images per user, 1 to 3 rounds, attacks of 2 steps (APGD alone "
        "for AutoAttack), 1 test image per user, photographs of 64 pixels: tests only that everything "
        "runs; ignore the accuracies",
        width=1 / 4,
        fraction=1 / 30,
        rounds=1 / 200,
        steps=2,
        test_samples=1,
        photograph=64,
        subset=1,
        attacks={
            "pgd-20:eps=16/255": "pgd-20:eps=16/255,steps=2",
            "pgd-20:eps=8/255": "pgd-20:eps=8/255,steps=2",
            "pgd-100:eps=8/255": "pgd-100:eps=8/255,steps=2",
            "mia-20:eps=16/255": "mia-20:eps=16/255,steps=2",
            "mia-100:eps=8/255": "mia-100:eps=8/255,steps=2",
            "aa:eps=8/255": "apgd:eps=8/255",
            "lsa-7": "lsa-7:rounds=1",
        },
    ),
    "cpu": Scale(
        "cpu",
        "half of the channels, 64 training images of digits per user (the paper: 111), 0.4 of the paper's rounds at "
        "five times its constant learning rate, so that learning rate × steps is the paper's, 40 test images per user, "
        "ten validations per run, photographs of 128 pixels",
        width=0.5,
        fraction=0.586,
        rounds=0.4,
        lr=5.0,
        precision="auto",
        validations=10,
        test_samples=40,
        photograph=128,
        subset=4,
    ),
    "full": Scale(
        "full",
        "the paper's network, users, images, batches and attack; a fifth of its rounds at five times its constant "
        "learning rate, so that learning rate × steps is the paper's; 100 test images per user, ten validations per "
        "run, photographs of 128 pixels",
        rounds=0.2,
        lr=5.0,
        precision="auto",
        validations=10,
        test_samples=100,
        photograph=128,
    ),
    "paper": Scale("paper", "the paper's size"),
}


def scaled(experiment: Experiment, scale: Scale) -> Experiment:
    """A run of the paper's size at this scale."""
    photographs = AVAILABLE[experiment.data.name].image_size >= PHOTOGRAPH
    rounds = max(1, round(experiment.train.rounds * scale.rounds))
    train: dict[str, Any] = {"rounds": rounds}
    if experiment.train.schedule == "constant":
        train["lr"] = experiment.train.lr * scale.lr
    if scale.validations is not None:
        train["validate_every"] = math.ceil(rounds / scale.validations)
    changes: dict[str, dict[str, Any]] = {
        "model": {"width": experiment.model.width * scale.width},
        "train": train,
        "federation": {"fraction": experiment.federation.fraction if photographs else _fraction(experiment, scale)},
    }
    if scale.test_samples is not None:
        changes["federation"]["test_samples"] = scale.test_samples
    if scale.photograph is not None and photographs:
        changes["data"] = {"image_size": scale.photograph}
    if scale.precision is not None:
        changes["run"] = {"precision": scale.precision}
    if scale.steps is not None:
        changes["attack"] = {"steps": scale.steps}
    method: dict[str, Any] = {
        key: max(1, round(value * scale.rounds))
        for key in ("ft_iterations", "warmup")
        if (value := getattr(experiment.method, key))
    }
    own = resolved(experiment).method
    if scale.clip is not None and own.lam and own.clip == "off" and experiment.method.clip is None:
        method["clip"] = scale.clip
    if own.meta_lr is not None and experiment.train.schedule == "constant":  # it replaces train.lr
        method["meta_lr"] = own.meta_lr * scale.lr
    changes["method"] = method
    return with_changes(experiment, changes)


def with_changes(experiment: Experiment, changes: Mapping[str, Mapping[str, Any]]) -> Experiment:
    """The experiment with these settings, by section, in place of its own; nothing is filled in from defaults."""
    values = experiment.model_dump()
    return Experiment.model_validate(values | {section: values[section] | new for section, new in changes.items()})


def _fraction(experiment: Experiment, scale: Scale) -> float:
    """The scaled share of images, raised so that every user can train, but never above the paper's."""
    own = experiment.federation
    wanted = own.fraction * scale.fraction
    needed = own.users_per_domain * scale.least_images / (1 - own.validation)
    floor = math.ceil(1000 * needed / min(AVAILABLE[experiment.data.name].train)) / 1000
    return min(own.fraction, max(wanted, floor))
