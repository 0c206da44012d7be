"""Attacks as text, for the command line and for tables: `pgd-100`, or `pgd:steps=50,eps=8/255,step=1/255,restarts=5`.

A text is a name, or a name and settings after a colon. A name is one of the paper's settings (`PAPER`), a family of
attacks or corruptions (`FAMILIES`), or your own as `package.module:object`. Both tables are in
`fedrbn.builtin.attacks`. Settings override those of the name.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias, cast, get_origin, get_type_hints

from fedrbn.attacks.protocols import Attack, LogitsAttack, Untargeted
from fedrbn.attacks.threat import from_config
from fedrbn.builtin import BuiltIn
from fedrbn.builtin.attacks import FAMILIES, ON_LOSS, PAPER
from fedrbn.config import AttackConfig
from fedrbn.config.plugins import accepts, is_reference, resolve, unknown
from fedrbn.config.text import nearest
from fedrbn.errors import AttackError


def attack_named(text: str, run: AttackConfig | None = None) -> LogitsAttack:
    """The attack, called as `attack(logits, x, y, generator)`, that a text describes.

    `run` is the attack config of the evaluated run. It gives ε if the text has none, and your own attack is built from
    it if it needs a config, as for training.
    """
    run = run or AttackConfig()
    text = text.strip()
    if _is_own(text):
        return _plugged_in(text, run)
    name, given = _parsed(with_eps(text, run.eps))
    return _built(name, given, text)


def with_eps(text: str, eps: float) -> str:
    """The text with ε written out, if the attack has one and the text does not give it: `pgd-20:eps=8/255`."""
    text = text.strip()
    if _is_own(text):
        return text
    name, given = _parsed(text)
    if "eps" in given or "eps" not in readers(name):
        return text
    return f"{text}{',' if ':' in text else ':'}eps={in_pixels(eps)}"


def in_pixels(eps: float) -> str:
    """A length in the usual notation, such as 8/255, if that is exact."""
    text = f"{255 * eps:g}"
    return f"{text}/255" if float(text) / 255 == eps else repr(eps)


def described(attack: LogitsAttack) -> str:
    """A full description of an attack: two texts for the same attack have the same description."""
    return repr(attack.attack if isinstance(attack, Untargeted) else attack)


def _is_own(text: str) -> bool:
    """Whether a text names a user's object: `pgd:steps` is a built-in attack with a mistake in its settings."""
    name = text.partition(":")[0]
    return name not in PAPER and name not in FAMILIES and is_reference(text)


def _parsed(text: str) -> tuple[str, dict[str, str]]:
    """The family that a text names and its settings."""
    name, _, settings = text.partition(":")
    if name not in PAPER and name not in FAMILIES:
        raise unknown("attack", name, (*PAPER, *FAMILIES))
    family, _, usual = PAPER.get(name, name).partition(":")
    return family, _settings(usual, text) | _settings(settings, text)


def epsilon(attack: LogitsAttack) -> float | None:
    """The L∞ radius that bounds an attack, for records; None if none does (local search, corruptions, your own)."""
    value: object = attack.attack if isinstance(attack, Untargeted) else attack
    eps: float | None = getattr(value, "eps", None) if type(value) in classes(FAMILIES).values() else None
    return eps


def classes(table: Mapping[str, BuiltIn]) -> dict[str, type[Any]]:
    """The classes of the attacks in a table, by name."""
    makers = [entry.load() for entry in table.values()]
    made = [maker if isinstance(maker, type) else get_type_hints(maker)["return"] for maker in makers]
    return {each.__name__: each for each in made}


Read: TypeAlias = Callable[[str], Any]
"""From the text of a setting to its value."""


def _fraction(text: str) -> float:
    above, slash, below = text.partition("/")
    return float(above) / float(below) if slash else float(above)


def _switch(text: str) -> bool:
    if text not in ("yes", "no"):
        raise AttackError("expected yes or no")
    return text == "yes"


_READERS: Mapping[Any, Read] = {int: int, float: _fraction, bool: _switch, str: str, Literal: str}
_SHORT = {"step_size": "step"}


def readers(name: str) -> dict[str, tuple[str, Read]]:
    """For each setting of a built-in attack, by its name in texts, its parameter and its reader."""
    make = FAMILIES[name].load()
    hints = get_type_hints(make)
    kinds = {key: get_origin(hints[key]) or hints[key] for key in inspect.signature(make).parameters}
    return {
        _SHORT.get(key, key).replace("_", "-"): (key, _READERS[kind]) for key, kind in kinds.items() if kind in _READERS
    }


def _settings(text: str, whole: str) -> dict[str, str]:
    """`a=1,b=2` as a dictionary."""
    pairs = [part.partition("=") for part in text.split(",")] if text else []
    for key, equals, value in pairs:
        if not (key.strip() and equals and value.strip()):
            raise AttackError(
                f"got {key + equals + value!r} in attack {whole!r}; expected settings such as steps=50,eps=8/255. "
                "Write them after one colon, separated by commas."
            )
    found = {key.strip(): value.strip() for key, _, value in pairs}
    if len(found) < len(pairs):
        raise AttackError(
            f"got a setting twice in attack {whole!r}; expected each at most once. Remove one of the two."
        )
    return found


def _built(name: str, given: Mapping[str, str], whole: str) -> LogitsAttack:
    settings = readers(name)
    arguments = {}
    for key, value in given.items():
        if key not in settings:
            meant = nearest(key, settings, cutoff=0.4)
            guess = f" Did you mean {meant!r}?" if meant else " Remove it."
            raise AttackError(
                f"got setting {key!r} in attack {whole!r}; expected {', '.join(settings)} for {name}.{guess}"
            )
        argument, read = settings[key]
        try:
            arguments[argument] = read(value)
        except (ValueError, ZeroDivisionError) as error:
            expected = {int: "a whole number", _switch: "yes or no"}.get(read, "a number such as 0.03 or 8/255")
            raise AttackError(
                f"got {key}={value} in attack {whole!r}; expected {expected}. Correct the value of {key}."
            ) from error
    made = FAMILIES[name](**arguments)
    return Untargeted(made) if name in ON_LOSS else cast(LogitsAttack, made)


def _plugged_in(name: str, run: AttackConfig) -> LogitsAttack:
    """Your own attack: on logits, called with four arguments, or on a loss, as for `attack.name`."""
    found = resolve(name)
    if accepts(found, 4):
        return cast(LogitsAttack, found)
    if accepts(found, 3):
        return Untargeted(cast(Attack, found))
    return Untargeted(from_config(run.model_copy(update={"name": name})))
