"""From the `[attack]` section of an experiment to an attack: its name and the threat model it runs under."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import cast

from fedrbn.attacks.pgd import PGD
from fedrbn.attacks.protocols import Attack
from fedrbn.builtin.attacks import ON_LOSS
from fedrbn.config import AttackConfig
from fedrbn.config.plugins import accepts, is_reference, resolve, unknown, wrong_signature
from fedrbn.errors import AttackError


def from_config(config: AttackConfig) -> Attack:
    """The attack that the config describes.

    A name `package.module:object` is looked up: the object is an attack `(loss, x, generator)` itself, or is called
    with the config and returns one; in the second case it sees eps, steps, step_size and threat, and honours them.
    """
    if config.name in ON_LOSS:
        return _built_in(config)
    if not is_reference(config.name):
        raise unknown("attack.name", config.name, ON_LOSS)
    return _plugged_in(config)


def _built_in(config: AttackConfig) -> Attack:
    """A built-in attack with those of ε, steps and step size that it has: FGSM-RS has one step, of its own length."""
    make = ON_LOSS[config.name].load()
    offered = config.model_dump(include={"eps", "steps", "step_size"})
    attack: Attack = make(**{key: offered[key] for key in inspect.signature(make).parameters if key in offered})
    if config.threat == "pixel":
        return attack
    if not isinstance(attack, PGD):
        raise AttackError(
            f"got threat {config.threat!r} with attack {config.name!r}; expected one that the released "
            "code has, such as 'pgd'. Choose it, or set attack.threat to 'pixel'."
        )
    return authors_release(attack)


def authors_release(attack: PGD) -> PGD:
    """The attack as the authors' released code runs it, only for comparison with their printed figures.

    Their digits are scaled to [-1, 1], but ε is taken as if in [0, 1] and the box [0, 1] is that of the scaled
    values. In pixels that is half of ε, the box [0.5, 1] (dark pixels are lifted to 0.5, far out of the ball), and
    a step of 1.25 ε / steps. Robustness under it says nothing about robustness in pixel space.
    """
    eps = attack.eps / 2
    return replace(attack, eps=eps, step_size=1.25 * eps / attack.steps, box=(0.5, 1.0))


def _plugged_in(config: AttackConfig) -> Attack:
    found = resolve(config.name)
    if accepts(found, 1):
        found = cast(Callable[[AttackConfig], object], found)(config)
    elif config.threat != "pixel":
        raise AttackError(
            f"got threat {config.threat!r} with the ready-made attack {config.name}; expected threat 'pixel'. Let "
            "the name point to a function that takes the AttackConfig and builds the attack for its threat model."
        )
    if not accepts(found, 3):
        raise AttackError(wrong_signature("attack", config.name, found))
    return cast(Attack, found)
