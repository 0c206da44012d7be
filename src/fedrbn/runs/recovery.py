"""After a crash: what was half written goes, and a run goes on from the newest checkpoint that is whole."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from fedrbn.errors import StorageError
from fedrbn.runs.checkpoint import Checkpoint, DamagedError, current, previous
from fedrbn.runs.directory import FILES, RunDirectory


class StorageWarning(UserWarning):
    """Something in a run directory was damaged, and the run goes on from what is whole."""


def recover(run: RunDirectory) -> None:
    """Make ready to train on: tidy up, go back to the newest whole checkpoint, drop the lines of later rounds."""
    tidy(run)
    last = _settled(run)
    finished = last.state.round if last else 0
    rounds = [record for record in run.records("rounds.jsonl") if _number(record) <= finished]
    run.rewrite("rounds.jsonl", rounds)


def tidy(run: RunDirectory) -> None:
    """Drop what a crash left half written: files, and lines that were cut off. Refuses what no run has written."""
    for name in ("config.toml", *FILES):
        run.folder.ensure_file(name)
    for place in (".", "answers", *run.folder.folders("clients")):
        for leftover in run.folder.leftovers(place):
            run.folder.remove(leftover)
    others = [name for name in ("stops.jsonl", "attempts.jsonl") if run.folder.exists(name)]
    for name in ("rounds.jsonl", "evaluations.jsonl", *others):
        run.rewrite(name, run.records(name))


def _settled(run: RunDirectory) -> Checkpoint | None:
    """Put the newest checkpoint in place that is whole, and whose best state is whole too; None at the beginning.

    A run is the same from whichever round it goes on, so that an older checkpoint costs time and nothing else.
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
                    note = f"{error} The run goes on from round {last.state.round}."
                    warnings.warn(note, StorageWarning, stacklevel=4)
                return last
    if damage:
        raise damage[0]
    if any(run.folder.exists(file) for file in (current("last"), previous("last"))):
        raise StorageError(
            f"got run {run.path} without the best state that its last checkpoint speaks of; expected "
            "best.safetensors. Put a copy back, or remove last.safetensors and last.previous.safetensors: --resume "
            "then trains from the beginning, to the same result."
        )
    _put_in_place(run, "best", None)  # of a first round whose end was not reached
    return None


def _read_whole(run: RunDirectory, file: str, damage: list[StorageError]) -> Checkpoint | None:
    """The checkpoint, if there is one and it is whole; what is wrong with it is added to `damage`."""
    try:
        return run.read_checkpoint(file) if run.folder.exists(file) else None
    except DamagedError as error:
        damage.append(error)
        return None


def _put_in_place(run: RunDirectory, name: str, file: str | None) -> None:
    """Make this file the current checkpoint; what is not whole, or of a round that was not finished, goes."""
    if file is None:
        run.folder.remove(current(name))
    elif file != current(name):
        run.folder.move(file, current(name))


def _number(record: Mapping[str, Any]) -> int:
    number = record.get("round")
    if not isinstance(number, int):
        raise StorageError(
            f"got a line of rounds.jsonl with round = {number!r}; expected a whole number. The file is damaged: put a "
            "copy back, or train again with --force."
        )
    return number
