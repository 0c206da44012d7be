"""Builds the attack of the `[attack]` section of an experiment, with its threat model."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import cast

from fedrbn.attacks.pgd import PGD
from fedrbn.attacks.protocols import Attack
from fedrbn.builtin.attacks import ON_LOSS
from fedrbn.config import AttackConfig
from fedrbn.config.plugins import SIGNATURES, accepts, called, is_reference, resolve, unknown, wrong_signature
from fedrbn.errors import AttackError


def from_config(config: AttackConfig) -> Attack:
    """The attack that the config describes.

    A name `package.module:object` is imported. The object is either an attack `(loss, x, generator)` or a function of
    the config that returns one. The function receives eps, steps, step_size and threat and must respect them.
    """
    if config.name in ON_LOSS:
        return _built_in(config)
    if not is_reference(config.name):
        raise unknown("attack.name", config.name, ON_LOSS)
    return _plugged_in(config)


def _built_in(config: AttackConfig) -> Attack:
    """A built-in attack with those of ε, steps and step size that it uses: FGSM-RS has one step of fixed size."""
    make = ON_LOSS[config.name].load()
    offered = config.model_dump(include={"eps", "steps", "step_size"})
    attack: Attack = make(**{key: offered[key] for key in inspect.signature(make).parameters if key in offered})
    if config.threat == "pixel":
        return attack
    if not isinstance(attack, PGD):
        raise AttackError(
            f"got threat {config.threat!r} with attack {config.name!r}; expected one that is in the released "
            "code, such as 'pgd'. Choose it, or set attack.threat to 'pixel'."
        )
    return authors_release(attack)


def authors_release(attack: PGD) -> PGD:
    """The attack as in the authors' released code, only for comparison with their published numbers.

    Their digits are scaled to [-1, 1], but ε is used as if the range were [0, 1], and the box [0, 1] is applied to the
    scaled values. In pixels that means half of ε, the box [0.5, 1] (dark pixels are raised to 0.5, far outside the
    ball), and a step of 1.25 ε / steps. Robustness against it says nothing about robustness in pixel space.
    """
    eps = attack.eps / 2
    return replace(attack, eps=eps, step_size=1.25 * eps / attack.steps, box=(0.5, 1.0))


def _plugged_in(config: AttackConfig) -> Attack:
    found = resolve(config.name)
    if accepts(found, 1):
        found = called("attack", config.name, cast(Callable[[AttackConfig], object], found), config)
        if not accepts(found, 3):
            raise AttackError(
                f"got attack {config.name!r}, which gives {type(found).__name__} for the config; expected "
                f"{SIGNATURES['attack']}. `fedrbn new attack NAME` writes a working example."
            )
    elif config.threat != "pixel":
        raise AttackError(
            f"got threat {config.threat!r} with the ready-made attack {config.name}; expected threat 'pixel'. Use "
            "the name of a function that takes the AttackConfig and builds the attack for its threat model."
        )
    if not accepts(found, 3):
        raise AttackError(wrong_signature("attack", config.name, found))
    return cast(Attack, found)
