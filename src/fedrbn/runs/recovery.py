"""Recover after a crash: remove incomplete files, and continue from the newest intact checkpoint."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from fedrbn.errors import StorageError
from fedrbn.runs.checkpoint import Checkpoint, DamagedError, current, previous
from fedrbn.runs.directory import FILES, RunDirectory


class StorageWarning(UserWarning):
    """A file in a run directory was damaged, and the run continues from the intact ones."""


def recover(run: RunDirectory) -> None:
    """Prepare a run for resuming: clean up, go back to the newest intact checkpoint, drop the lines of later rounds."""
    tidy(run)
    last = _settled(run)
    finished = last.state.round if last else 0
    rounds = [record for record in run.records("rounds.jsonl") if _number(record) <= finished]
    run.rewrite("rounds.jsonl", rounds)


def tidy(run: RunDirectory) -> None:
    """Remove incomplete files and truncated lines after a crash. Refuses files that no run has written."""
    for name in ("config.toml", *FILES):
        run.folder.ensure_file(name)
    for place in (".", "answers", *run.folder.folders("clients")):
        for leftover in run.folder.leftovers(place):
            run.folder.remove(leftover)
    others = [name for name in ("stops.jsonl", "attempts.jsonl") if run.folder.exists(name)]
    for name in ("rounds.jsonl", "evaluations.jsonl", *others):
        run.rewrite(name, run.records(name))


def _settled(run: RunDirectory) -> Checkpoint | None:
    """Restore the newest intact checkpoint whose best state is intact too; None if the run has none yet.

    A run gives the same result from any of its rounds, so an older checkpoint only costs time.
    """
    damage: list[StorageError] = []
    for file in (current("last"), previous("last")):
        last = _read_whole(run, file, damage)
        if last is None:
            continue
        for chosen in (current("best"), previous("best")):
            best = _read_whole(run, chosen, damage) if last.best else None
            if last.best is None or (best and best.state.round == last.best.round):
                _put_in_place(run, "last", file)
                _put_in_place(run, "best", chosen if best else None)
                for error in damage:
                    note = f"{error} The run continues from round {last.state.round}."
                    warnings.warn(note, StorageWarning, stacklevel=4)
                return last
    if damage:
        raise damage[0]
    if any(run.folder.exists(file) for file in (current("last"), previous("last"))):
        raise StorageError(
            f"got run {run.path} without the best state that its last checkpoint refers to; expected "
            "best.safetensors. Restore a copy, or remove last.safetensors and last.previous.safetensors: --resume "
            "then trains from the beginning and gives the same result."
        )
    _put_in_place(run, "best", None)  # from a first round that did not finish
    return None


def _read_whole(run: RunDirectory, file: str, damage: list[StorageError]) -> Checkpoint | None:
    """The checkpoint, if it exists and is intact; otherwise its error is added to `damage`."""
    try:
        return run.read_checkpoint(file) if run.folder.exists(file) else None
    except DamagedError as error:
        damage.append(error)
        return None


def _put_in_place(run: RunDirectory, name: str, file: str | None) -> None:
    """Make this file the current checkpoint; damaged ones and those of unfinished rounds are removed."""
    if file is None:
        run.folder.remove(current(name))
    elif file != current(name):
        run.folder.move(file, current(name))


def _number(record: Mapping[str, Any]) -> int:
    number = record.get("round")
    if not isinstance(number, int):
        raise StorageError(
            f"got a line of rounds.jsonl with round = {number!r}; expected a whole number. The file is damaged: "
            "restore a copy, or train again with --force."
        )
    return number
