"""An `Execute` over Flower's `Grid`: jobs are sent as messages, answers become results, and every job gets a result.

A client that is not connected, raises, dies, sends an invalid answer or is late gets a Failure.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

from flwr.app import RecordDict
from flwr.serverapp import Grid

from fedrbn.config import Experiment
from fedrbn.errors import MessageError
from fedrbn.federated.protocol import Execute, Failure, Job, Result, Round, Train, Upload
from fedrbn.flower import wire
from fedrbn.flower.exchange import NoAnswer, OutgoingMessage, exchange
from fedrbn.flower.instructions import Setup, Transport, setup_for
from fedrbn.flower.log import EventLog
from fedrbn.flower.messages import Parts, order_records, result_of, shared_record
from fedrbn.types import Member, Role


@dataclass(frozen=True)
class NodeLink:
    """What is needed to exchange messages with clients."""

    grid: Grid
    experiment: Experiment
    token: str
    parts: Parts
    address: Callable[[str], tuple[int, Member] | None]
    """The current node and member of a client; None if it is not connected."""
    counted: Callable[[str], int]
    """The number of samples that a client counts for, independent of its claim; see `claim_checks.capped_samples`."""
    refresh: Callable[[], None]
    """Updates which clients are connected; called before every set of jobs."""
    log: EventLog
    deadline: float
    """Maximum seconds for a job, unless `faults.deadline_seconds` is smaller."""
    poll: float
    transport: Transport = "float32"


@dataclass
class _Tally:
    """Which clients answered in a call, when, and with how many bytes; which did not, and why."""

    started: float = field(default_factory=time.monotonic)
    theta: int = 0
    """Bytes of the shared weights, which are part of every message but leave the server once."""
    clients: dict[str, dict[str, float]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def answered(self, client: str, down: int, up: int) -> None:
        seconds = round(time.monotonic() - self.started, 3)
        self.clients[client] = {"seconds": seconds, "down": down, "up": up}


def grid_execute(line: NodeLink) -> Execute:
    """Runs clients on Flower's nodes."""

    def execute(round_: Round, jobs: Iterable[Job]) -> Iterator[Result]:
        asked = list(jobs)
        if not asked:
            return
        line.refresh()
        tally, kind = _Tally(), "train" if isinstance(asked[0], Train) else "evaluate"
        for result in _answers(line, round_, asked, kind, tally):
            if isinstance(result, Failure):
                tally.failed[result.client] = result.cause
            yield result
        line.log(
            kind,
            round=round_.number + 1 if kind == "train" else round_.number,
            seconds=round(time.monotonic() - tally.started, 3),
            theta=tally.theta,
            down=sum(int(each["down"]) for each in tally.clients.values()),
            up=sum(int(each["up"]) for each in tally.clients.values()),
            clients=tally.clients,
            failed=tally.failed,
        )

    return execute


def _answers(line: NodeLink, round_: Round, jobs: list[Job], kind: str, tally: _Tally) -> Iterator[Result]:
    shared = shared_record(round_.shared, line.parts, line.transport)
    tally.theta = wire.size(RecordDict({"shared": shared}))
    deadline = min(line.deadline, round_.deadline_seconds or line.deadline)
    round_ = replace(round_, deadline_seconds=deadline)
    setups: dict[Role, Setup] = {role: setup_for(role, line.experiment, line.token) for role in Role}
    outgoing: dict[str, OutgoingMessage] = {}
    asked: dict[str, tuple[Job, Member]] = {}
    for job in jobs:
        found = line.address(job.client)
        if found is None:
            yield Failure(job.client, round_.number, "its node is not connected")
            continue
        node, member = found
        order = order_records(
            round_, job, member.role, setups[member.role], shared, line.transport, line.experiment.attack
        )
        outgoing[job.client] = OutgoingMessage(node, order)
        asked[job.client] = job, member
    group = str(round_.number)
    for client, content in exchange(line.grid, outgoing, kind, group=group, deadline=deadline, poll=line.poll):
        job, member = asked[client]
        if isinstance(content, NoAnswer):
            yield Failure(client, round_.number, content.cause)
            continue
        tally.answered(client, wire.size(outgoing[client].content), wire.size(content))
        try:
            result = result_of(content, round_, job, member, line.parts, line.transport)
        except MessageError as error:
            result = Failure(client, round_.number, str(error))
        if isinstance(result, Upload) and result.samples == member.samples:  # other claims are rejected later
            result = replace(result, samples=line.counted(client))
        yield result
