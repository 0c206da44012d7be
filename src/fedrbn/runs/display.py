"""Progress of a run: a live panel on a terminal, or plain lines if the output is not a terminal."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from fedrbn.cost.durations import duration
from fedrbn.evaluation.records import RoundRecord
from fedrbn.federated.assemble import Assembly
from fedrbn.federated.privacy.accountant import spending
from fedrbn.federated.protocol import Answers, Failure, Result, Upload
from fedrbn.runs.history import RoundHistory, sparkline
from fedrbn.runs.overview import overview
from fedrbn.types import Role

VALIDATION = {"ra_at": "RA of AT users", "sa_st": "SA of ST users"}


@dataclass
class Activity:
    """What clients are currently doing, and how many of them are done."""

    name: str
    clients: int
    answered: dict[str, int] = field(default_factory=lambda: {"AT": 0, "ST": 0, "failed": 0})
    newest: str = ""
    """The client that answered last, and how it went."""

    @property
    def done(self) -> int:
        """Clients that have answered."""
        return sum(self.answered.values())

    def count(self, result: Result, role: Role | None) -> None:
        """Note a client's answer."""
        self.newest = result.client
        if isinstance(result, Failure):
            self.newest += " failed"
        elif isinstance(result, Upload):
            loss = result.metrics.get("loss", math.nan)
            self.newest += f" ({role.value if role else '?'}) loss {loss:.3f}"
        self.answered["failed" if isinstance(result, Failure) else role.value if role else "ST"] += 1

    def __str__(self) -> str:
        counts = "  ".join(f"{name} {number}" for name, number in self.answered.items())
        return f"{counts}  of {self.clients}   {self.newest}"


def panel(history: RoundHistory, title: str, activity: str, doing: str) -> RenderableType:
    """An overview of the run: rounds and time left, validation and loss as sparklines, what clients are doing."""
    grid = Table.grid(padding=(0, 2))
    bar = ProgressBar(total=max(1, history.rounds), completed=history.finished, width=24)
    left = history.seconds_left
    grid.add_row(
        f"{title} round",
        bar,
        f"{history.finished}/{history.rounds}",
        f"{duration(left)} left" if left is not None else "",
    )
    for name, label in VALIDATION.items():
        values = history.values(name)
        if values:
            grid.add_row(label, sparkline(values), f"{values[-1]:.1%}", f"best {max(values):.1%}")
    losses = history.values("loss")
    if losses:
        grid.add_row("loss", sparkline(losses), f"{losses[-1]:.3f}")
    rows = Table.grid()
    rows.add_row(grid)
    rows.add_row(f"{activity}: clients {doing}" if doing else activity)
    return rows


def plain_line(history: RoundHistory, title: str) -> str:
    """The newest round in one line."""
    newest = history.entries[-1]
    said = [f"{title}: round {newest.round}/{history.rounds}"]
    if newest.loss is not None:
        said.append(f"loss {newest.loss:.3f}")
    last = {label: history.values(name)[-1:] for name, label in VALIDATION.items()}
    validation = ", ".join(f"{label} {values[0]:.1%}" for label, values in last.items() if values)
    said += [f"validation {validation}"] if validation else []
    said += [f"{newest.failed} failed"] if newest.failed else []
    return "  ".join([*said, f"{duration(history.seconds_left or 0.0)} left"])


class Display:
    """A `Watcher` that shows round, clients, loss, validation and time left. Use it as a context manager."""

    def __init__(self, console: Console, title: str) -> None:
        self.console = console
        self.title = title
        self.history = RoundHistory(0, {})
        self.activity = Activity("starting", 0)
        self.privacy = ""
        self.live = Live(get_renderable=self._panel, console=console, transient=True) if console.is_terminal else None

    def __enter__(self) -> Display:
        if self.live is not None:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live is not None:
            self.live.stop()

    def training(self, assembly: Assembly, finished: int) -> None:
        """Print what is about to run and how long it will take."""
        plan, rounds = assembly.plan, assembly.plan.schedule.rounds
        self.history = RoundHistory(rounds, {member.id: member.role for member in plan.members}, finished=finished)
        self.activity = Activity("training", len(plan.schedule.sample(finished)) if finished < rounds else 0)
        for line in overview(assembly, finished):
            self._say(line)
        planned = spending(assembly.experiment, plan, rounds)
        if planned is not None:
            self.privacy = f"privacy spent after all rounds: {planned}"
            self._say(self.privacy)

    def answered(self, result: Result) -> None:
        """Show the client that has just answered."""
        if isinstance(result, Answers) and self.activity.name == "training":  # all uploads are in: validation
            self.activity = Activity("validating", len(self.history.roles))
        self.activity.count(result, self.history.roles.get(result.client))

    def round_finished(self, record: RoundRecord) -> None:
        """Show the round's loss, its validation and the time left."""
        self.history = self.history.after([record])
        self.activity = Activity("training", len(record.clients))
        for failure in record.failures:
            self._say(f"client {failure.client} is left out of round {failure.round}: {failure.cause}")
        if record.warning:
            self._say(f"warning: {record.warning}")
        if self.live is None:
            self.console.print(plain_line(self.history, self.title), highlight=False, markup=False)

    def evaluating(self, clients: int) -> None:
        """Print that the final evaluation starts."""
        self.activity = Activity(f"{self.title} evaluating", clients)
        if self.privacy:
            self._say(self.privacy)
        if self.live is None:
            self._say(f"evaluating {clients} clients")

    def _say(self, text: str) -> None:
        self.console.print(f"{self.title}: {text}", highlight=False, markup=False)

    def _panel(self) -> RenderableType:
        return panel(self.history, self.title, self.activity.name, str(self.activity))
