"""Clients that raise, hang, die, answer late, twice or with invalid data: the round continues without them."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace

import numpy as np
import torch

from fedrbn.config import FaultsConfig
from fedrbn.federated.assemble import Assembly, assemble
from fedrbn.federated.protocol import Execute, Failure, Job, Result, Round, ServerState, Upload
from fedrbn.federated.server import Plan, RoundReport, federate, initial_state, round_of
from fedrbn.types import Tensors
from soak.kills import Data
from soak.setting import LostError, Row, experiment

Change = Callable[[Upload, np.random.Generator], Iterable[Result]]


def _in_shared(change: Callable[[torch.Tensor, np.random.Generator], torch.Tensor]) -> Change:
    """Change one randomly drawn tensor of the shared weights."""

    def changed(upload: Upload, random: np.random.Generator) -> list[Result]:
        name = str(random.choice(sorted(upload.shared)))
        return [replace(upload, shared=upload.shared | {name: change(upload.shared[name].clone(), random)})]

    return changed


def _put(value: float) -> Callable[[torch.Tensor, np.random.Generator], torch.Tensor]:
    def change(tensor: torch.Tensor, random: np.random.Generator) -> torch.Tensor:
        tensor.view(-1)[int(random.integers(tensor.numel()))] = value
        return tensor

    return change


def _negative_variance(upload: Upload, random: np.random.Generator) -> list[Result]:
    name = str(random.choice([name for name in upload.personal if name.endswith("running_var")]))
    return [replace(upload, personal=upload.personal | {name: _put(-0.01)(upload.personal[name].clone(), random)})]


def _without_a_tensor(upload: Upload, random: np.random.Generator) -> list[Result]:
    gone = str(random.choice(sorted(upload.shared)))
    return [replace(upload, shared={name: value for name, value in upload.shared.items() if name != gone})]


CHANGES: dict[str, Change] = {
    "a client raises an error": lambda u, _: [Failure(u.client, u.round, "RuntimeError: out of memory")],
    "a client never answers": lambda _, __: [],
    "a client answers to an earlier round": lambda u, _: [replace(u, round=u.round - 1)],
    "an update with a NaN": _in_shared(_put(math.nan)),
    "an update with an infinite value": _in_shared(_put(math.inf)),
    "an exploded update": _in_shared(lambda tensor, _: tensor + 1e6),
    "an update of another shape": _in_shared(lambda tensor, _: tensor[None]),
    "an update of another type": _in_shared(lambda tensor, _: tensor.half()),
    "an update without one of its tensors": _without_a_tensor,
    "an update with an extra tensor": lambda u, _: [replace(u, shared=u.shared | {"x.y": torch.ones(1)})],
    "a negative variance": _negative_variance,
    "a sample count of zero": lambda u, _: [replace(u, samples=0)],
    "a sample count of a billion": lambda u, _: [replace(u, samples=10**9)],
    "a loss of NaN": lambda u, _: [replace(u, metrics={**u.metrics, "loss": math.nan})],
}
"""What happens to an upload on its way to the server."""


def rows(data: Data, tries: int, kills: int, random: np.random.Generator) -> list[Row]:
    """Every fault of a client, tried `tries` times; faults of processes `kills` times."""
    assembly = assemble(experiment(), data=data)
    plan, start = assembly.plan, initial_state(assembly.net, assembly.plan)
    with assembly.executor() as execute:
        state, _ = next(federate(start, plan, execute))
        sent = [result for result in execute(round_of(state, plan), _jobs(plan, state)) if isinstance(result, Upload)]
    found = [_changed(name, change, plan, state, sent, tries, random) for name, change in CHANGES.items()]
    found.append(_twice(plan, state, sent, tries, random))
    found.append(_killed_workers(assembly, state, sent, kills, random))
    found.append(_hanging_workers(assembly, state, sent, kills, random))
    return found


def _jobs(plan: Plan, state: ServerState) -> list[Job]:
    """The jobs of the round after this state, as the server creates them."""
    asked: list[Job] = []

    def note(_: Round, jobs: Iterable[Job]) -> Iterator[Result]:
        asked.extend(jobs)
        yield from ()

    try:
        next(federate(state, plan, note))
    except RuntimeError:  # no client has answered
        return asked
    raise LostError("got a round without answers; expected an error.")


def _replayed(results: Iterable[Result]) -> Execute:
    return lambda _, __: iter(list(results))


def _changed(
    name: str,
    change: Change,
    plan: Plan,
    state: ServerState,
    sent: list[Upload],
    tries: int,
    random: np.random.Generator,
) -> Row:
    for _ in range(tries):
        victim = sent[int(random.integers(len(sent)))]
        others = [upload for upload in sent if upload is not victim]
        results = [*others, *change(victim, random)]
        random.shuffle(results)
        after, report = next(federate(state, plan, _replayed(results)))
        expected, _ = next(federate(state, plan, _replayed(others)))
        _ensure_left_out(victim.client, state.round, after, report, expected)
    return Row(name, tries, "left out; client, round and cause recorded; the mean of the others is exact")


def _ensure_left_out(client: str, number: int, after: ServerState, report: RoundReport, expected: ServerState) -> None:
    recorded = [failure for failure in report.failures if failure.client == client and failure.round == number]
    if not recorded or client in report.clients or not _same(after, expected):
        raise LostError(f"got an update of {client!r} that was counted or not recorded; expected it to be left out.")


def _same(one: ServerState, other: ServerState) -> bool:
    def equal(first: Tensors, second: Tensors) -> bool:
        return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)

    return equal(one.shared, other.shared) and all(
        equal(own, other.personal[client]) for client, own in one.personal.items()
    )


def _twice(plan: Plan, state: ServerState, sent: list[Upload], tries: int, random: np.random.Generator) -> Row:
    expected, _ = next(federate(state, plan, _replayed(sent)))
    for _ in range(tries):
        victim = sent[int(random.integers(len(sent)))]
        second = replace(victim, shared={name: value + 1 for name, value in victim.shared.items()})
        after, report = next(federate(state, plan, _replayed([*sent, second])))
        if not _same(after, expected) or [failure.client for failure in report.failures] != [victim.client]:
            raise LostError("got a second answer that was counted or not recorded; expected only the first one.")
    return Row("a client answers twice", tries, "the first answer counts, the second is recorded")


def _struck(
    assembly: Assembly, plan: Plan, state: ServerState, strike: Callable[[int], None], random: np.random.Generator
) -> tuple[ServerState, RoundReport]:
    """A round in two worker processes, one of which is hit when a random client has answered."""
    before = {process.pid for process in multiprocessing.active_children()}
    moment = int(random.integers(1, len(plan.members) - 1))
    with replace(assembly, plan=plan, workers=2).executor() as bare:
        workers = [p.pid for p in multiprocessing.active_children() if p.pid not in before and p.pid]

        def execute(round_: Round, jobs: Iterable[Job]) -> Iterator[Result]:
            for number, result in enumerate(bare(round_, jobs)):
                if number == moment:
                    threading.Timer(random.uniform(0, 0.02), strike, [int(random.choice(workers))]).start()
                yield result

        return next(federate(state, plan, execute))


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):  # it has already ended
        os.kill(pid, signal.SIGKILL)


def _stop(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)


def _killed_workers(
    assembly: Assembly, state: ServerState, sent: list[Upload], tries: int, random: np.random.Generator
) -> Row:
    expected, _ = next(federate(state, assembly.plan, _replayed(sent)))
    for _ in range(tries):
        after, report = _struck(assembly, assembly.plan, state, _kill, random)
        if not _same(after, expected) or report.failures:
            raise LostError("got another state after a worker was killed; expected its job to be done again.")
    return Row("a worker process killed (SIGKILL) in a round", tries, "replaced, its job repeated: the same bytes")


def _hanging_workers(
    assembly: Assembly, state: ServerState, sent: list[Upload], tries: int, random: np.random.Generator
) -> Row:
    plan = replace(assembly.plan, faults=FaultsConfig(deadline_seconds=20.0))
    given_up = 0
    for _ in range(tries):
        after, report = _struck(assembly, plan, state, _stop, random)
        left = [upload for upload in sent if upload.client not in {failure.client for failure in report.failures}]
        expected, _ = next(federate(state, plan, _replayed(left)))
        if not _same(after, expected) or len(left) < len(sent) - 1:
            raise LostError("got another state after a worker hung; expected at most one client to be left out.")
        given_up += len(left) < len(sent)
    return Row(
        "a worker process that hangs (SIGSTOP), with a deadline",
        tries,
        f"abandoned at the deadline ({given_up} times in the middle of a job: that client is left out), others exact",
    )
