"""Completes the runs of an experiment: several at a time, each resumed where it stopped, none repeated."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from torch import set_num_threads

from fedrbn.config import Experiment
from fedrbn.evaluation.protocol import EvaluationSettings
from fedrbn.reproduce import measures, reading
from fedrbn.reproduce.experiment_cells import Cell
from fedrbn.reproduce.measures import Measure
from fedrbn.runs import sweep
from fedrbn.runs.train import evaluate


@dataclass(frozen=True)
class Task:
    """A run and the evaluations and measurements that it needs after training."""

    experiment: Experiment
    attacks: tuple[str, ...] = ()
    measures: tuple[Measure, ...] = ()


@dataclass(frozen=True)
class TaskOutcome:
    """How a task ended; `error` is None if it is complete."""

    task: Task
    error: str | None


def tasks(cells: Iterable[Cell]) -> list[Task]:
    """Every run once, with everything that any cell needs from it."""
    found: dict[str, Task] = {}
    for cell in cells:
        for experiment in cell.runs:
            task = found.setdefault(experiment.key(), Task(experiment))
            attacks = tuple(dict.fromkeys((*task.attacks, *cell.attacks)))
            measured = tuple(dict.fromkeys((*task.measures, *measures.needed(cell.read))))
            found[experiment.key()] = replace(task, attacks=attacks, measures=measured)
    return list(found.values())


def complete(todo: Iterable[Task], store: Path, workers: int, subset: int) -> Iterator[TaskOutcome]:
    """Complete the tasks, one per worker at a time; a task that fails does not stop the others."""
    waiting = list(todo)
    if workers == 1 or len(waiting) == 1:
        for task in waiting:
            yield _outcome(task, partial(finish, task, store, subset))
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        min(workers, len(waiting)), mp_context=context, initializer=set_num_threads, initargs=(1,)
    ) as pool:
        started: dict[Future[None], Task] = {pool.submit(finish, task, store, subset): task for task in waiting}
        try:
            for future in as_completed(started):
                yield _outcome(started[future], future.result)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)  # after an interruption, start nothing more


def _outcome(task: Task, result: Callable[[], None]) -> TaskOutcome:
    try:
        result()
    except (ValueError, TypeError, RuntimeError, OSError, ArithmeticError) as error:
        return TaskOutcome(task, f"{type(error).__name__}: {error}")
    return TaskOutcome(task, None)


def finish(task: Task, store: Path, subset: int) -> None:
    """Train a run if it is not trained yet, then add the missing evaluations and measurements."""
    sweep.complete(sweep.SweepCell("", task.experiment), store)
    directory = reading.directory(task.experiment, store)
    if task.attacks and reading.under_attacks(directory, task.attacks) is None:
        evaluate(directory, EvaluationSettings(attacks=task.attacks, adaptive=False, subset=subset), workers=1)
    measures.complete(directory, task.measures)
