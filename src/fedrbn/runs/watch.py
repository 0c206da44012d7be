"""Follow a run that another process trains, by the files it writes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from fedrbn.attacks import from_config
from fedrbn.config import Experiment
from fedrbn.federated.aggregation.layout import Layout
from fedrbn.federated.options import configure
from fedrbn.federated.server import Plan
from fedrbn.runs.directory import RunDirectory
from fedrbn.runs.history import Story
from fedrbn.runs.records import rounds
from fedrbn.types import Member

PATIENCE = 2
"""Looks in a row at a run that nobody holds, before it is said not to be alive: one may fall before it starts."""


class Phase(Enum):
    """How far a run is."""

    TRAINING = "training"
    EVALUATING = "evaluating"
    FINISHED = "finished"
    STOPPED = "not alive"


@dataclass(frozen=True)
class Sight:
    """A run at one moment."""

    story: Story
    phase: Phase
    cause: str = ""
    """Why it stopped, if it said so."""


def planned_rounds(experiment: Experiment, members: tuple[Member, ...]) -> int:
    """How many rounds the run will have, Free AT and fine-tuning included."""
    method = configure(experiment.method, from_config(experiment.attack))
    nothing = Layout(frozenset(), frozenset(), frozenset(), ())  # which tensors are shared does not matter here
    return Plan(members, method, nothing, experiment.train, experiment.run.seed).rounds


def beginning(directory: RunDirectory) -> Story:
    """The run before its first round."""
    members, _, _ = directory.description()
    roles = {member.id: member.role for member in members}
    return Story(planned_rounds(directory.experiment(), members), roles)


def look(directory: RunDirectory, start: Story) -> Sight:
    """How the run stands now. A line that is half written is left for the next look."""
    held = directory.held()  # asked first: what was written before it was let go is then seen below
    story = start.after(rounds(directory))
    if directory.records("evaluations.jsonl"):
        return Sight(story, Phase.FINISHED)
    if held:
        return Sight(story, Phase.TRAINING if story.finished < story.rounds else Phase.EVALUATING)
    stops = [stop for stop in directory.records("stops.jsonl") if stop["round"] > story.finished]
    cause = "; ".join(f"{f['client']}: {f['cause']}" for f in stops[-1]["failures"]) if stops else ""
    return Sight(story, Phase.STOPPED, cause)


def follow(path: Path, every: float = 1.0, sleep: Callable[[float], None] = time.sleep) -> Iterator[Sight]:
    """The run now and whenever something has changed, until it is finished or not alive."""
    directory = RunDirectory.open(path)
    start = beginning(directory)
    shown: Sight | None = None
    unheld = 0
    while True:
        sight = look(directory, start)
        unheld = unheld + 1 if sight.phase is Phase.STOPPED else 0
        if sight != shown and unheld in (0, PATIENCE):
            yield sight
            shown = sight
        if sight.phase is Phase.FINISHED or unheld >= PATIENCE:
            return
        sleep(every)
