"""fedrbn watch: follow a run that was started elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedrbn.cli.output import console, say

if TYPE_CHECKING:
    from rich.console import Console

    from fedrbn.runs.watch import RunStatus


def watch(
    directory: Annotated[Path, typer.Argument(help="A directory made by fedrbn run.")],
    every: Annotated[float, typer.Option(min=0.1, help="Seconds between two updates.")] = 1.0,
) -> None:
    """Follow a run that another process trains, through the files that it writes, until it ends.

    Prints the evaluation of a finished run. Exit code 1 if the run is not finished and no process is training it.
    """
    from fedrbn.evaluation.tables import evaluation_table
    from fedrbn.runs.directory import RunDirectory
    from fedrbn.runs.records import evaluations
    from fedrbn.runs.watch import RunStage

    last = show_until_end(directory, every)
    if last.stage is RunStage.FINISHED:
        console().print(evaluation_table(evaluations(RunDirectory.open(directory))[0]))
        return
    reason = f" ({last.cause})" if last.cause else ""
    say(
        f"{directory} has stopped{reason}: {last.history.finished} of {last.history.rounds} rounds are finished and "
        f"no process is training it. Continue it: fedrbn run --resume {directory}"
    )
    raise typer.Exit(1)


def show_until_end(directory: Path, every: float) -> RunStatus:
    """Show the run's progress: a live panel on a terminal, otherwise a line per round. Returns the last status."""
    from fedrbn.runs.watch import follow

    screen = console(err=True)
    title = directory.resolve().name
    with live_panel(screen, title) if screen.is_terminal else nullcontext(Lines(screen, title)) as show:
        for status in follow(directory, every):
            show(status)
    return status


@contextmanager
def live_panel(screen: Console, title: str) -> Iterator[Callable[[RunStatus], None]]:
    """A panel that every status updates and that disappears at the end."""
    from rich.live import Live

    from fedrbn.runs.display import panel

    with Live(console=screen, transient=True) as live:
        yield lambda status: live.update(panel(status.history, title, status.stage.value, counted(status)))


class Lines:
    """A line for each round that is new since the last status."""

    def __init__(self, screen: Console, title: str) -> None:
        self.screen = screen
        self.title = title
        self.printed = 0

    def __call__(self, status: RunStatus) -> None:
        """Print what is new."""
        from fedrbn.runs.display import plain_line

        for number in range(self.printed + 1, len(status.history.entries) + 1):
            line = plain_line(status.history.until(number), self.title)
            self.screen.print(line, highlight=False, markup=False)
        self.printed = len(status.history.entries)


def counted(status: RunStatus) -> str:
    """Who took part in the newest round."""
    from fedrbn.types import Role

    if not status.history.entries:
        return ""
    newest = status.history.entries[-1]
    at, st = (status.history.took_part(newest, role) for role in (Role.AT, Role.ST))
    return f"AT {at}  ST {st}  failed {newest.failed} in round {newest.round}"
