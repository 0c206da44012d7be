"""Recomputes the run that the records of a deployment describe, on this machine and without a network."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import torch

from fedrbn.config import Experiment, FaultsConfig
from fedrbn.evaluation.records import RoundRecord
from fedrbn.federated.assemble import assemble
from fedrbn.federated.protocol import Execute, Job, Result, Round, ServerState
from fedrbn.federated.server import initial_state, play_round
from fedrbn.runs.directory import RunDirectory
from fedrbn.runs.records import rounds
from soak.setting import LostError


def replayed(experiment: Experiment, records: Iterable[RoundRecord]) -> ServerState:
    """The state after these rounds, if exactly the recorded clients take part in each."""
    assembly = assemble(experiment)
    plan = replace(assembly.plan, faults=FaultsConfig(min_clients=1))
    state = initial_state(assembly.net, plan)
    with assembly.executor() as execute:
        for record in records:
            state, _ = play_round(state, plan, _only(execute, frozenset(record.clients)))
    return state


def _only(execute: Execute, clients: frozenset[str]) -> Execute:
    def some(round_: Round, jobs: Iterable[Job]) -> Iterator[Result]:
        yield from execute(round_, [job for job in jobs if job.client in clients])

    return some


def ensure_explained(run: Path, experiment: Experiment) -> int:
    """Raise unless every round is recorded once and the records explain the weights; returns how many answers count."""
    directory = RunDirectory.open(run)
    records, checkpoint = rounds(directory), directory.checkpoint("last")
    numbers = [record.round for record in records]
    if checkpoint is None or numbers != list(range(1, experiment.train.rounds + 1)):
        raise LostError(f"got records of the rounds {numbers}; expected 1 to {experiment.train.rounds}, each once.")
    state, expected = checkpoint.state, replayed(experiment, records)
    if (state.round, state.reported, state.missed) != (expected.round, expected.reported, expected.missed):
        raise LostError("got a state that counts other clients than the records; expected the same.")
    torch.testing.assert_close(state.shared, expected.shared, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(state.personal, expected.personal, rtol=1e-4, atol=1e-5)
    return sum(len(record.clients) for record in records)
