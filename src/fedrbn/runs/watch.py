"""Follow a run that another process trains, through the files that it writes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from fedrbn.attacks import from_config
from fedrbn.config import Experiment
from fedrbn.federated.options import configure
from fedrbn.federated.schedule import Schedule
from fedrbn.runs.directory import RunDirectory
from fedrbn.runs.history import RoundHistory
from fedrbn.runs.records import rounds, stops
from fedrbn.types import Member

PATIENCE = 2
"""Consecutive checks that find the lock free before a run counts as stopped: the first may come before it starts."""


class RunStage(Enum):
    """The stage of a run."""

    TRAINING = "training"
    EVALUATING = "evaluating"
    FINISHED = "finished"
    STOPPED = "stopped"


@dataclass(frozen=True)
class RunStatus:
    """A run at one moment."""

    history: RoundHistory
    stage: RunStage
    cause: str = ""
    """Why it stopped, if known."""


def planned_rounds(experiment: Experiment, members: tuple[Member, ...]) -> int:
    """How many rounds the run will have, including Free AT and fine-tuning."""
    method = configure(experiment.method, from_config(experiment.attack))
    return Schedule(members, method, experiment.train, experiment.run.seed).rounds


def history_at_start(directory: RunDirectory) -> RoundHistory:
    """The run before its first round."""
    members, _, _ = directory.description()
    roles = {member.id: member.role for member in members}
    return RoundHistory(planned_rounds(directory.experiment(), members), roles)


def run_status(directory: RunDirectory, start: RoundHistory) -> RunStatus:
    """The current status of the run. A line that is not complete yet is left for the next check."""
    held = directory.held()  # first, so that everything written before the lock was released is seen below
    history = start.after(rounds(directory))
    if directory.records("evaluations.jsonl"):
        return RunStatus(history, RunStage.FINISHED)
    if held:
        return RunStatus(history, RunStage.TRAINING if history.finished < history.rounds else RunStage.EVALUATING)
    later = [stop for stop in stops(directory) if stop.round > history.finished]
    cause = "; ".join(f"{failure.client}: {failure.cause}" for failure in later[-1].failures) if later else ""
    return RunStatus(history, RunStage.STOPPED, cause)


def follow(path: Path, every: float = 1.0, sleep: Callable[[float], None] = time.sleep) -> Iterator[RunStatus]:
    """The status of the run now and after every change, until it is finished or stopped."""
    directory = RunDirectory.open(path)
    start = history_at_start(directory)
    shown: RunStatus | None = None
    unheld = 0
    while True:
        status = run_status(directory, start)
        unheld = unheld + 1 if status.stage is RunStage.STOPPED else 0
        if status != shown and unheld in (0, PATIENCE):
            yield status
            shown = status
        if status.stage is RunStage.FINISHED or unheld >= PATIENCE:
            return
        sleep(every)
