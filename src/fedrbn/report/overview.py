"""Settings and outcome of a run: settings, rounds, users, failed clients."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from fedrbn import config
from fedrbn.config import Experiment
from fedrbn.cost.durations import duration
from fedrbn.evaluation.records import FailureRecord
from fedrbn.federated.options import resolved
from fedrbn.report.content import PageTable
from fedrbn.report.gather import Run
from fedrbn.types import Role

NAMES = {("data", "name"), ("method", "name")}
"""Settings that are always shown."""
MOST_ALARMS = 3
"""Warnings that are shown in full."""
WHEREABOUTS = {("run", "workers"), ("run", "out"), ("run", "device")}
"""Settings that say where a run took place, not what it did."""


def settings_tables(experiment: Experiment) -> tuple[PageTable, PageTable]:
    """The settings that differ from the defaults of this data set and method, after the two names; and all settings."""
    names = {"data": {"name": experiment.data.name}, "method": {"name": experiment.method.name}}
    try:
        usual = resolved(config.make(names))
    except (ValueError, TypeError):  # a user's own method that cannot be imported here
        usual = config.make(names)
    ours, theirs = experiment.model_dump(mode="json"), usual.model_dump(mode="json")
    rows, changed = [], []
    for section, key, _, meaning in config.reference():
        value = ours[section][key]
        if (section, key) in NAMES or _differs(section, key, value, theirs[section][key]):
            changed.append((f"{section}.{key}", _value(value), _value(theirs[section][key]), meaning))
        if value is not None:
            rows.append((f"{section}.{key}", _value(value), meaning))
    head = ("setting", "value", "default", "meaning")
    about = "Settings that differ from the defaults of this data set and method, after the two names"
    return (
        PageTable(about, head, tuple(changed), text_columns=4, explained=True),
        PageTable("All settings", ("setting", "value", "meaning"), tuple(rows), text_columns=3),
    )


def _differs(section: str, key: str, value: Any, usual: Any) -> bool:
    """Whether a setting was chosen; an option that is not set has the method's default."""
    return value != usual and (section, key) not in WHEREABOUTS and not (section == "method" and value is None)


def _value(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        eighths = value * 255
        return f"{eighths:g}/255" if 0 < value < 0.2 and abs(eighths - round(eighths)) < 1e-9 else f"{value:g}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def ending(run: Run, planned: int) -> str:
    """The outcome of a run in one or two sentences; what to do if it is not finished."""
    done = run.rounds[-1].round if run.rounds else 0
    failed = {failure.client for failure in run.failures}
    lost = f" {len(failed)} client(s) failed in some round." if failed else " No client failed." if done else ""
    if run.ending is not None:
        chosen = "the last one was chosen" if run.ending.round == done else f"validation chose round {run.ending.round}"
        return f"Finished: {done} of {planned} rounds; {chosen}.{lost}"
    if run.held:
        return f"In progress: {done} of {planned} rounds when this page was made.{lost}"
    stopped = f" It stopped in round {run.stops[-1].round}: too few clients answered." if run.stops else ""
    return f"Not finished: {done} of {planned} rounds.{stopped} Continue it with fedrbn run --resume {run.path}.{lost}"


def remarks(run: Run) -> tuple[str, ...]:
    """Problems that did not end the run: warnings about diverging losses, clients that could not be evaluated."""
    alarms = [f"Round {record.round}: {record.warning}" for record in run.rounds if record.warning]
    unheard = [
        f"Client {client} could not be evaluated and is not part of any mean: {cause}"
        for client, cause in (run.ending.unanswered if run.ending is not None else {}).items()
    ]
    hidden = [f"And {len(alarms) - MOST_ALARMS} more rounds with such a warning."] * (len(alarms) > MOST_ALARMS)
    return (*alarms[:MOST_ALARMS], *hidden, *unheard)


def run_facts(run: Run) -> tuple[tuple[str, str], ...]:
    """Users, duration and versions."""
    facts = []
    if run.members:
        roles = {role: sum(member.role is role for member in run.members) for role in Role}
        domains = list(dict.fromkeys(member.domain for member in run.members))
        samples = [member.samples for member in run.members]
        most = f"{min(samples)}" if min(samples) == max(samples) else f"{min(samples)} to {max(samples)}"
        facts += [
            ("Users", f"{roles[Role.AT]} AT and {roles[Role.ST]} ST in {len(domains)} domain(s)"),
            ("Training images per user", most),
            *_duties(run),
        ]
    seconds = sum(record.seconds for record in run.rounds)
    if seconds:
        facts.append(("Training time", duration(seconds)))
    if run.ending is not None:
        versions = ", ".join(f"{name} {version}" for name, version in run.ending.versions.items())
        facts += [("Versions", versions)] if versions else []
    return tuple(facts)


def _duties(run: Run) -> list[tuple[str, str]]:
    """The number of users per duty, if roles are not enough; and the rounds in which duties changed."""
    found = []
    if any(member.duty != member.role.duty for member in run.members):
        counts = Counter(str(member.duty) for member in run.members)
        found.append(("Duties", ", ".join(f"{count} × {duty}" for duty, count in counts.items())))
    pairs = itertools.pairwise(run.rounds)
    changed = [str(after.round) for before, after in pairs if before.duties != after.duties]
    return found + ([("Duties changed in round", ", ".join(changed))] if changed else [])


def failures(run: Run) -> PageTable | None:
    """Clients that failed in some round, with causes; None if there are none."""
    found: dict[str, list[FailureRecord]] = {}
    for failure in run.failures:
        found.setdefault(failure.client, []).append(failure)
    if not found:
        return None
    rows = tuple(
        (client, cases[-1].cause, str(len(cases)), _numbers([case.round for case in cases]))
        for client, cases in found.items()
    )
    return PageTable("Clients that failed", ("client", "last cause", "times", "in rounds"), rows, text_columns=2)


def _numbers(rounds: Sequence[int]) -> str:
    return ", ".join(str(number) for number in rounds[:12]) + "…" * (len(rounds) > 12)
