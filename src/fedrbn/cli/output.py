"""What the commands print and how: tables to stdout, progress and messages to stderr."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from fedrbn.runs.printable import printable

if TYPE_CHECKING:
    from rich.console import Console

    from fedrbn.runs.watcher import Watcher


def echo(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print a line. Commands print only through this or `console`, so that no control sequence reaches the terminal."""
    typer.echo(printable(text), err=err, nl=nl)


def console(*, err: bool = False) -> Console:
    """The terminal; if the output is a file or a pipe, which have no width, a wide page."""
    from fedrbn.runs.console import SafeConsole

    plain = SafeConsole(err=err)
    return plain if plain.is_terminal else SafeConsole(err=err, width=140)


def say(text: str, quiet: bool = False) -> None:
    """A message for the person at the terminal."""
    if not quiet:
        echo(text, err=True)


@contextmanager
def watching(title: str, quiet: bool, *others: AbstractContextManager[Watcher]) -> Iterator[Watcher | None]:
    """One watcher for the progress display (unless quiet) and all other watchers; None if there are none."""
    from fedrbn.runs.display import Display
    from fedrbn.runs.watcher import Watchers

    with ExitStack() as stack:
        shown: list[AbstractContextManager[Watcher]] = [] if quiet else [Display(console(err=True), title)]
        watchers = [stack.enter_context(watcher) for watcher in (*shown, *others)]
        yield Watchers(watchers) if watchers else None


def show(record: dict[str, Any], directory: Path, as_json: bool) -> None:
    """An evaluation record as a table, or as JSON for machines."""
    from fedrbn.evaluation.records import EvaluationRecord
    from fedrbn.evaluation.tables import evaluation_table

    if as_json:
        print_json(record)
        return
    console().print(evaluation_table(EvaluationRecord.from_json(record)))
    say(f"run directory: {directory}")


def print_json(value: Any) -> None:
    """A value as JSON on stdout."""
    echo(json.dumps(value, indent=1))


def listed(text: str) -> list[str]:
    """The parts of a comma-separated list."""
    return [part.strip() for part in text.split(",") if part.strip()]
