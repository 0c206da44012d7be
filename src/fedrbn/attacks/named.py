"""Attacks by text, for the command line and for tables: `pgd-100`, or `pgd:steps=50,eps=8/255,step=1/255,restarts=5`.

A text is a name, or a name and settings after a colon. A name is one of the paper's settings (`PAPER`), a family of
attacks or corruptions (`FAMILIES`), or your own as `package.module:object`. Settings override those of the name.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from fedrbn.attacks.autoattack import AutoAttack, apgd, square
from fedrbn.attacks.corruptions import KINDS, Corruption, Kind, Oblivious
from fedrbn.attacks.local_search import LocalSearch
from fedrbn.attacks.pgd import PGD, fgsm_rs, mia, pgd
from fedrbn.attacks.protocols import Attack, LogitsAttack, Untargeted
from fedrbn.attacks.threat import accepts
from fedrbn.config.plugins import is_reference, resolve, unknown
from fedrbn.errors import AttackError

PAPER: Mapping[str, str] = {
    "pgd-7": "pgd:steps=7,eps=8/255,step=2/255",
    "pgd-20": "pgd:steps=20,eps=16/255,step=2/255",
    "pgd-100": "pgd:steps=100,eps=8/255,step=2/255",
    "mia-20": "mia:steps=20,eps=16/255,step=2/255",
    "mia-100": "mia:steps=100,eps=8/255,step=2/255",
    "aa": "autoattack:eps=8/255,version=standard",
    "lsa-7": "lsa:rounds=7",
}
"""The attacks of the paper, of its training (pgd-7) and of its table of attacks.

The paper gives the step of 2/255 for 7 steps only. It is kept for the others: 20 steps reach 40/255 and 100 steps
200/255, more than the ball is wide (32/255 and 16/255), so every start can reach every point.
"""


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


@dataclass(frozen=True)
class Family:
    """How a name and texts become an attack: the function to call, and for each setting its argument and reader."""

    build: Callable[..., LogitsAttack]
    settings: Mapping[str, tuple[str, Callable[[str], Any]]]


def _fraction(text: str) -> float:
    above, slash, below = text.partition("/")
    return float(above) / float(below) if slash else float(above)


def _switch(text: str) -> bool:
    if text not in ("yes", "no"):
        raise AttackError("expected yes or no")
    return text == "yes"


def _word(name: str) -> tuple[str, Callable[[str], Any]]:
    return name, str


_EPS = ("eps", _fraction)
_STEPS = ("steps", int)
_STEP = ("step_size", _fraction)
_QUERIES = ("queries", int)

FAMILIES: Mapping[str, Family] = {
    "pgd": Family(
        lambda **settings: Untargeted(pgd(**settings)),
        {
            "eps": _EPS,
            "steps": _STEPS,
            "step": _STEP,
            "restarts": ("restarts", int),
            "random-start": ("random_start", _switch),
        },
    ),
    "mia": Family(
        lambda **settings: Untargeted(mia(**settings)),
        {"eps": _EPS, "steps": _STEPS, "step": _STEP, "decay": ("decay", float)},
    ),
    "fgsm-rs": Family(lambda **settings: Untargeted(fgsm_rs(**settings)), {"eps": _EPS}),
    "autoattack": Family(AutoAttack, {"eps": _EPS, "version": _word("version"), "queries": _QUERIES}),
    "apgd": Family(apgd, {"eps": _EPS, "loss": _word("loss")}),
    "square": Family(square, {"eps": _EPS, "queries": _QUERIES}),
    "lsa": Family(
        LocalSearch,
        {
            "rounds": ("rounds", int),
            "r": ("r", float),
            "trial": _word("trial"),
            "radius": ("radius", int),
            "pixels": ("pixels", int),
            "top": ("top", int),
            "accumulate": ("accumulate", _switch),
        },
    ),
    **{
        kind: Family(
            lambda kind=kind, **settings: Oblivious(Corruption(cast(Kind, kind), **settings)),
            {"severity": ("severity", int)},
        )
        for kind in KINDS
    },
}
"""Every attack and corruption with its settings; a setting that is not given keeps the default of its function."""


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
    family = FAMILIES[name]
    arguments = {}
    for key, value in given.items():
        if key not in family.settings:
            nearest = difflib.get_close_matches(key, family.settings, n=1, cutoff=0.4)
            guess = f" Did you mean {nearest[0]!r}?" if nearest else " Remove it."
            raise AttackError(
                f"got setting {key!r} in attack {whole!r}; expected {', '.join(family.settings)} for {name}.{guess}"
            )
        argument, read = family.settings[key]
        try:
            arguments[argument] = read(value)
        except (ValueError, ZeroDivisionError) as error:
            expected = {int: "a whole number", _switch: "yes or no"}.get(read, "a number such as 0.03 or 8/255")
            raise AttackError(
                f"got {key}={value} in attack {whole!r}; expected {expected}. Correct the value of {key}."
            ) from error
    return family.build(**arguments)


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
