"""Text as a terminal shows it, and never obeys it."""

from __future__ import annotations

import re

_COMMANDS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that a terminal obeys instead of showing them, or that change the direction of what stands beside them."""


def printable(text: str) -> str:
    """The text with such characters written out: names come from files, and may want to rewrite the screen."""
    return _COMMANDS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
