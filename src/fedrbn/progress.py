"""Progress of a run on the terminal: a live line, or plain lines where the output is not a terminal."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from fedrbn.assembly import Assembly
from fedrbn.estimate import as_text, estimate_seconds
from fedrbn.types import Answers, Failure, Result, Role, Upload


class Display:
    """A `Watcher` that shows round, client, loss, validation and time left. Use it as a context manager."""

    def __init__(self, console: Console, title: str) -> None:
        self.console = console
        self.title = title
        self.roles: dict[str, Role] = {}
        self.rounds = self.finished = 0
        self.started = 0.0
        self.loss = self.validation = ""
        self.activity = "training"
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self.rounds_bar: TaskID | None = None
        self.clients_bar: TaskID | None = None

    def __enter__(self) -> Display:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def training(self, assembly: Assembly, finished: int) -> None:
        """Say what is about to run and how long it will take."""
        members = assembly.plan.members
        self.roles = {member.id: member.role for member in members}
        self.rounds, self.finished, self.started = assembly.plan.rounds, finished, time.perf_counter()
        at = sum(member.role is Role.AT for member in members)
        self.console.print(
            f"{self.title}: {len(members)} clients ({at} AT, {len(members) - at} ST), "
            f"{self.rounds - finished} rounds to go, {assembly.workers} worker(s); "
            f"estimated time {as_text(estimate_seconds(assembly, finished))}",
            highlight=False,
        )
        self.rounds_bar = self.progress.add_task(f"{self.title} round", total=self.rounds, completed=finished, note="")
        self.clients_bar = self.progress.add_task(self.activity, total=len(members), note="")

    def answered(self, result: Result) -> None:
        """Show the client that has just answered."""
        if self.clients_bar is None:
            return
        note = result.client
        if isinstance(result, Upload):
            note = f"{result.client} ({self.roles[result.client].value}) loss {result.metrics['loss']:.3f}"
        elif isinstance(result, Failure):
            note = f"{result.client} failed"
        if isinstance(result, Answers) and self.activity == "training":  # the round's uploads are in: now validation
            self._count_anew("validating")
        self.progress.update(self.clients_bar, advance=1, note=note)

    def _count_anew(self, activity: str) -> None:
        """Count clients from 0 again, for what they do next."""
        self.activity = activity
        if self.clients_bar is not None:
            self.progress.reset(self.clients_bar, description=activity, total=len(self.roles), note="")

    def round_finished(self, record: dict[str, Any]) -> None:
        """Show the round's loss, its validation and the time left."""
        losses = [metrics["loss"] for metrics in record["clients"].values()]
        self.loss = f"loss {sum(losses) / len(losses):.3f}"
        if record.get("validation") and record["validation"]["score"] is not None:
            parts = {"RA of AT users": record["validation"]["ra_at"], "SA of ST users": record["validation"]["sa_st"]}
            self.validation = "validation " + ", ".join(f"{k} {v:.1%}" for k, v in parts.items() if v is not None)
        done = record["round"] - self.finished
        left = (time.perf_counter() - self.started) / done * (self.rounds - record["round"])
        note = "  ".join(text for text in (self.loss, self.validation, f"{as_text(left)} left") if text)
        if self.rounds_bar is not None and self.clients_bar is not None:
            self.progress.update(self.rounds_bar, completed=record["round"], note=note)
            self._count_anew("training")
        if not self.console.is_terminal:
            self.console.print(f"{self.title}: round {record['round']}/{self.rounds}  {note}", highlight=False)

    def evaluating(self, clients: int) -> None:
        """Say that the final evaluation starts."""
        if self.clients_bar is not None:
            self.progress.remove_task(self.clients_bar)
        self.activity = "evaluating"
        self.clients_bar = self.progress.add_task(f"{self.title} {self.activity}", total=clients, note="")
        if not self.console.is_terminal:
            self.console.print(f"{self.title}: evaluating {clients} clients", highlight=False)
