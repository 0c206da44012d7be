"""What clients spend of their privacy in a run: a round that is repeated with fresh noise is a further release."""

from __future__ import annotations

from collections import Counter
from typing import Any

from fedrbn.federated.prepared_experiment import PreparedExperiment
from fedrbn.federated.privacy.accountant import privacy_record, releases_again
from fedrbn.runs.directory import RunDirectory

ATTEMPTS = "attempts.jsonl"
"""One line for each time that clients were asked for a round, in runs with new noise each time."""


def note_attempt(prepared: PreparedExperiment, directory: RunDirectory, number: int) -> None:
    """Note that clients are about to be asked for a round, which counts from 1."""
    if releases_again(prepared.experiment):
        directory.append(ATTEMPTS, {"round": number})


def privacy_spent(prepared: PreparedExperiment, directory: RunDirectory, finished: int) -> dict[str, Any]:
    """The privacy that a client has spent after all rounds; repeated rounds cost more."""
    if not releases_again(prepared.experiment):
        return {}
    return privacy_record(prepared.experiment, prepared.plan, _repeated(directory, finished))


def _repeated(directory: RunDirectory, finished: int) -> Counter[int]:
    """How many extra times clients were asked for each round (from 0), after stops and kills."""
    asked = Counter(int(line["round"]) - 1 for line in directory.records(ATTEMPTS))
    return asked - Counter(range(finished))
