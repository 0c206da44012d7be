"""Settings as text: TOML, `section.key=value`, and the wording of errors in them."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable
from typing import Any

from fedrbn.errors import ConfigError

_MOST_SHOWN = 200
"""Maximum number of characters of a wrong value in a message."""
_MOST_PARTS = 32
"""Maximum number of dots in a TOML key; ours have three."""
_STRING = re.compile(r"\"[^\"]*\"|'[^']*'")
_BETWEEN_KEYS = re.compile(r"[=,{}\[\]]")


def parse_toml(text: str) -> dict[str, Any]:
    """The tables of a TOML text."""
    _ensure_flat(text)
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # tomllib raises these for some numbers and for deep nesting
        raise ConfigError(
            f"got text that is not TOML ({error}); expected sections such as [data] with key = value lines. "
            "Strings need quotes."
        ) from None


def _ensure_flat(text: str) -> None:
    """Refuse keys of very many parts: tomllib needs quadratic time for them, a minute for 40 kB."""
    for line in text.splitlines():
        if line.count(".") <= _MOST_PARTS:
            continue
        outside = _STRING.sub("", line).partition("#")[0]
        if any(part.count(".") > _MOST_PARTS for part in _BETWEEN_KEYS.split(outside)):
            raise ConfigError(
                f"got a TOML key of more than {_MOST_PARTS} parts; expected a section and a setting, such as train.lr. "
                "Remove it."
            )


def toml_value(text: str) -> Any:
    """A TOML value if the text is one, else the text itself, so that names need no quotes on the command line."""
    try:
        return tomllib.loads(f"value = {text}")["value"] if "\n" not in text else text
    except (ValueError, RecursionError):
        return text.strip()


def shortened(value: object) -> str:
    """A value for a message, shortened; a number with too many digits for Python to print is described instead."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):
        return f"a value of type {type(value).__name__} that is too large to show"
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"


def length_hint(length: float) -> str:
    """The hint in a message about a length in pixels that is not in [0, 1]."""
    return f"did you mean {length:g}/255?" if 1 < length <= 255 else "such as 8/255"


def nearest(name: str, known: Iterable[str], cutoff: float = 0.5) -> str | None:
    """The known name that was probably meant; a different spelling of a name is preferred to a similar name.

    Case and separators are ignored, so FedRBN and fed_rbn match fedrbn and never another method. So do letters in
    another order, such as fedrnb.
    """
    spelt = {_letters(each): each for each in known}
    found = difflib.get_close_matches(_letters(name), spelt, n=max(1, len(spelt)), cutoff=cutoff)
    swapped = [each for each in found if sorted(each) == sorted(_letters(name))]
    return spelt[(swapped or found)[0]] if found else None


def _letters(name: str) -> str:
    return re.sub(r"[-_ .]", "", name.casefold()).replace("plus", "+")


def unknown_name(name: str, known: Iterable[str], what: str) -> str:
    """The message for an unknown name, with the closest known one."""
    guess = nearest(name, known)
    remedy = f"did you mean {guess!r}?" if guess else f"choose from {', '.join(sorted(known))}."
    return f"got {shortened(name)}; expected a {what}: {remedy}"


def require_known(name: str, known: Iterable[str], what: str) -> None:
    """Refuse an unknown name."""
    if name not in known:
        raise ConfigError(unknown_name(name, known, what))
