"""Text that is safe to print on a terminal."""

from __future__ import annotations

import re

_COMMANDS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters of terminals, and characters that change the direction of the text around them."""


def printable(text: str) -> str:
    """The text with such characters escaped: names come from files and could manipulate the screen."""
    return _COMMANDS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
