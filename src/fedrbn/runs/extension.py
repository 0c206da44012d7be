"""Extend a run: it continues as if it had been started with more rounds; if that is not possible, it is refused.

A run can be extended if its first rounds do not depend on the total number. Then only two things depend on it: the last
round is always validated, and the settings contain the number. So a checkpoint of a last round that was validated only
because it was the last is dropped, and the others get the new settings. Repeating the command completes an interrupted
extension.
"""

from __future__ import annotations

import math
from dataclasses import replace

from fedrbn.attacks import from_config
from fedrbn.config import Experiment
from fedrbn.errors import ConfigError
from fedrbn.federated.methods import Method
from fedrbn.federated.options import configure
from fedrbn.federated.prepared_experiment import PreparedExperiment
from fedrbn.federated.privacy.accountant import privacy_record
from fedrbn.runs.checkpoint import Checkpoint, DamagedError, encode, read
from fedrbn.runs.directory import CHECKPOINTS, RunDirectory


def extend(directory: RunDirectory, rounds: int) -> None:
    """Give the run this number of rounds, if it has fewer. The caller holds the lock and recovers the run afterwards.

    Evaluations after fewer rounds are removed, because they are of an intermediate state.
    """
    old = directory.experiment()
    method = configure(old.method, from_config(old.attack))
    _ensure_possible(old, method, rounds, f"fedrbn run --rounds {rounds}")
    wanted = _with_rounds(old, rounds)
    found = _checkpoints(directory, wanted)
    tied = (one.experiment.key() for one in found.values() if one.experiment is not None)
    if old == wanted and all(key == wanted.key() for key in tied):
        return
    directory.remove_evaluations()
    for name, checkpoint in found.items():
        if _last_by_chance(checkpoint, checkpoint.experiment or old, method):
            directory.folder.remove(name)
        else:
            directory.folder.write(name, encode(replace(checkpoint, experiment=wanted)))
    directory.change_settings(wanted)


def rewrite_origin(directory: RunDirectory, prepared: PreparedExperiment) -> None:
    """Update the settings and the planned privacy in the records of rounds that were finished before."""
    origin = {"key": prepared.experiment.key(), **privacy_record(prepared.experiment, prepared.plan)}
    directory.rewrite("rounds.jsonl", [{**line, **origin} for line in directory.records("rounds.jsonl")])


def _ensure_possible(old: Experiment, method: Method, rounds: int, anew: str) -> None:
    have = old.train.rounds
    if rounds < have:
        raise ConfigError(
            f"got --rounds {rounds} for a run of {have} rounds; expected at least {have}: a run can be extended, but "
            f"not shortened. Start another run with {anew}."
        )
    why = None
    if old.train.schedule != "constant":
        why = f"train.schedule = {old.train.schedule!r}, whose learning rates depend on the number of rounds from "
        why += "the first round"
    elif method.fine_tuning is not None:
        why = f"method {method.name!r}, whose second phase starts when the rounds of the first are done"
    if why is not None and rounds != have:
        raise ConfigError(
            f"got --rounds {rounds} for a run of {have} rounds with {why}; expected a run whose first {have} rounds "
            f"do not depend on the total. Start another run with {anew} and the same settings."
        )


def _checkpoints(directory: RunDirectory, wanted: Experiment) -> dict[str, Checkpoint]:
    """The intact checkpoints, by their files; one of another experiment is refused.

    `recovery.recover` handles damaged ones.
    """
    found = {}
    for name in CHECKPOINTS:
        if not directory.folder.exists(name):
            continue
        try:
            checkpoint = read(directory.folder, name)
        except DamagedError:
            continue
        if checkpoint.experiment is not None:
            directory.ensure_same(_with_rounds(checkpoint.experiment, directory.experiment().train.rounds), name)
            if checkpoint.experiment.train.rounds > wanted.train.rounds:
                directory.ensure_same(checkpoint.experiment, name)
        found[name] = checkpoint
    return found


def _last_by_chance(checkpoint: Checkpoint, written: Experiment, method: Method) -> bool:
    """Whether the checkpoint is of a last round that a longer run would not have validated."""
    number, train = checkpoint.state.round, written.train
    return number == math.ceil(train.rounds / method.replays) and number % train.validate_every != 0


def _with_rounds(experiment: Experiment, rounds: int) -> Experiment:
    return experiment.model_copy(update={"train": experiment.train.model_copy(update={"rounds": rounds})})
