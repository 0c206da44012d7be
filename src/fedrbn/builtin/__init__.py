"""Everything that a setting can name: one table each of methods, attacks, aggregation rules, networks and data sets.

An entry says where the code is and what it does. The code is imported when it is first used, so the command line can
list all names quickly. To add something, write it in its own file and add a line to the table: help texts, `fedrbn
settings`, `docs/configuration.md` and "did you mean" read the tables.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

OWN = "package.module:object"
"""How settings name code that is not in these tables."""


@dataclass(frozen=True)
class BuiltIn:
    """One entry of a table; calling it calls the function that it refers to."""

    reference: str
    """Where that function (or class) is, as module:name."""
    summary: str
    """A short description."""

    def load(self) -> Any:
        """The function itself."""
        module, _, name = self.reference.partition(":")
        return getattr(importlib.import_module(module), name)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """What the function returns."""
        return self.load()(*arguments, **keywords)


def alternatives(names: Iterable[str], *others: str) -> str:
    """The names for a help text, and the other accepted forms: `a, b, or package.module:object`."""
    return f"{', '.join([*names, *others])}, or {OWN}"
