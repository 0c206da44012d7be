"""Attacks by text, for the command line and for tables: `pgd-100`, or `pgd:steps=50,eps=8/255,step=1/255,restarts=5`.

A text is a name, or a name and settings after a colon. A name is one of the paper's settings (`PAPER`), a family of
attacks or corruptions (`FAMILIES`), or your own as `package.module:object`. Both tables are in
`fedrbn.builtin.attacks`. Settings override those of the name.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias, cast, get_origin, get_type_hints

from fedrbn.attacks.autoattack import AutoAttack
from fedrbn.attacks.pgd import PGD
from fedrbn.attacks.protocols import Attack, LogitsAttack, Untargeted
from fedrbn.attacks.threat import accepts
from fedrbn.builtin.attacks import FAMILIES, ON_LOSS, PAPER
from fedrbn.config.plugins import is_reference, resolve, unknown
from fedrbn.errors import AttackError


def attack_named(text: str) -> LogitsAttack:
    """The attack, called as `attack(logits, x, y, generator)`, that a text describes."""
    text = text.strip()
    name, _, settings = text.partition(":")
    if name in PAPER:
        family, _, given = PAPER[name].partition(":")
        return _built(family, _settings(given, text) | _settings(settings, text), text)
    if name in FAMILIES:
        return _built(name, _settings(settings, text), text)
    if is_reference(text):
        return _plugged_in(text)
    raise unknown("attack", name, (*PAPER, *FAMILIES))


def epsilon(attack: LogitsAttack) -> float | None:
    """The L∞ radius that bounds an attack, for records; None if none does (local search, corruptions, one's own)."""
    match attack:
        case Untargeted(attack=PGD(eps=eps)) | AutoAttack(eps=eps):
            return eps
        case _:
            return None


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
    """For each setting of a built-in attack, as texts call it, the parameter that it stands for and its reader."""
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
            nearest = difflib.get_close_matches(key, settings, n=1, cutoff=0.4)
            guess = f" Did you mean {nearest[0]!r}?" if nearest else " Remove it."
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


def _plugged_in(name: str) -> LogitsAttack:
    """One's own attack: on logits, called with four arguments, or on a loss, called with three."""
    found = resolve(name)
    if accepts(found, 4):
        return cast(LogitsAttack, found)
    if accepts(found, 3):
        return Untargeted(cast(Attack, found))
    raise AttackError(
        f"got {found!r} from attack {name!r}; expected an attack, called as (logits, x, y, generator) or as "
        "(loss, x, generator). Check which object the name points to."
    )
