"""Recomputes the run that the records of a deployment describe, on this machine and without a network."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
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
    """The state after these rounds, if exactly the recorded clients take part in each, in the recorded order.

    A client that failed and was asked again is the last one in its round's sum. Another order would round differently.
    """
    assembly = assemble(experiment)
    members = [member.id for member in assembly.plan.schedule.members]
    state = initial_state(assembly.net, assembly.plan)
    with assembly.executor() as execute:
        for record in records:
            all_of_them = FaultsConfig(min_clients=len(record.clients), on_too_few="wait", wait_seconds=1e-3)
            plan = replace(assembly.plan, faults=all_of_them)
            attempts = split_at_descents([members.index(client) for client in record.clients])
            state, _ = play_round(state, plan, _only(execute, [{members[i] for i in run} for run in attempts]))
    return state


def split_at_descents(numbers: Sequence[int]) -> list[list[int]]:
    """The numbers as ascending runs: [0, 2, 3, 1] as [[0, 2, 3], [1]]. Each run is an attempt of a round."""
    runs: list[list[int]] = []
    for number in numbers:
        if not runs or number < runs[-1][-1]:
            runs.append([])
        runs[-1].append(number)
    return runs


def _only(execute: Execute, attempts: Iterable[Collection[str]]) -> Execute:
    """Lets these clients answer in each attempt; the others do not answer."""
    turns = iter(attempts)

    def some(round_: Round, jobs: Iterable[Job]) -> Iterator[Result]:
        answering = next(turns)
        yield from execute(round_, [job for job in jobs if job.client in answering])

    return some


def ensure_explained(run: Path, experiment: Experiment) -> int:
    """Raise unless every round is recorded once and the records explain the weights bit by bit.

    Returns the number of answers that count.
    """
    directory = RunDirectory.open(run)
    records, checkpoint = rounds(directory), directory.checkpoint("last")
    numbers = [record.round for record in records]
    if checkpoint is None or numbers != list(range(1, experiment.train.rounds + 1)):
        raise LostError(f"got records of the rounds {numbers}; expected 1 to {experiment.train.rounds}, each once.")
    state, expected = checkpoint.state, replayed(experiment, records)
    if (state.round, state.reported, state.missed) != (expected.round, expected.reported, expected.missed):
        raise LostError("got a state that counts other clients than the records; expected the same.")
    torch.testing.assert_close(state.shared, expected.shared, rtol=0, atol=0)
    torch.testing.assert_close(state.personal, expected.personal, rtol=0, atol=0)
    return sum(len(record.clients) for record in records)
