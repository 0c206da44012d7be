"""The console for tables and progress: text is printed literally, never interpreted as markup or escape sequences."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.text import Text

from fedrbn.runs.printable import printable


class SafeConsole(Console):
    """A console that does not interpret markup or emoji codes in text, and removes escape sequences.

    `render_str` renders every text of a table, including its title and caption.
    """

    def __init__(self, *, err: bool = False, width: int | None = None, **more: Any) -> None:
        super().__init__(stderr=err, width=width, markup=False, emoji=False, **more)

    def render_str(self, text: str, **options: Any) -> Text:
        """See `Console.render_str`."""
        return super().render_str(printable(text), **options)
