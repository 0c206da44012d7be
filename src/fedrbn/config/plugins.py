"""Own code by name: wherever a built-in is named, `package.module:object` is accepted too."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable

from fedrbn.errors import ConfigError

GIVEN = "(given in Python)"
"""The name, in a run's config, of a network or data set that was passed as an object and has no name."""


def given_again(kind: str) -> ConfigError:
    """The error for a run whose network or data were passed as an object and are missing now."""
    return ConfigError(
        f"got a run whose {kind} was given in Python as an object; expected that object again. Pass {kind}=… to "
        "resume, evaluate or load, or name it in the config as package.module:object."
    )


def is_reference(name: str) -> bool:
    """Whether a name refers to an importable object rather than to a built-in."""
    return ":" in name and all(part.isidentifier() for part in name.replace(":", ".").split("."))


def resolve(name: str) -> object:
    """The object behind `package.module:object` (dots after the colon reach into it)."""
    module_name, _, attribute = name.partition(":")
    try:
        found: object = importlib.import_module(module_name)
    except ImportError as error:
        raise ConfigError(
            f"got {name!r}, whose module {module_name!r} cannot be imported ({error}); expected an importable "
            "package.module:object. Install the package or run from the folder that holds it."
        ) from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise ConfigError(
                f"got {name!r}, but {module_name!r} has no {attribute!r}; expected the name of an object in it."
            )
        found = getattr(found, part)
    return found


def unknown(kind: str, name: str, known: Iterable[str], *, own: bool = True) -> ConfigError:
    """The error for an unknown name, with the nearest known one; `own` if `package.module:object` would do as well."""
    names = list(known)
    nearest = difflib.get_close_matches(name, names, n=1, cutoff=0.4)
    guess = f" Did you mean {nearest[0]!r}?" if nearest else ""
    also = ", or package.module:object" if own else ""
    return ConfigError(f"got {kind} {name!r}; expected one of {', '.join(names)}{also}.{guess}")
