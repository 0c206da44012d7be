"""Algorithm 2: the server's rounds, as a generator. Logging, validation, checkpoints and stopping are the caller's."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch

from fedrbn.config import TrainConfig
from fedrbn.federated.aggregation import Aggregate, Contribution, Layout, Local, layout, mean
from fedrbn.federated.client import steps_per_epoch
from fedrbn.federated.methods import Method
from fedrbn.federated.propagation import propagate
from fedrbn.nets.dual_bn import DualNet, tensors
from fedrbn.randomness import generator
from fedrbn.types import Branch, Execute, Failure, Member, Result, Role, Round, ServerState, Train, Upload


class FederationError(RuntimeError):
    """A client could not do its part, so the round could not be finished."""


@dataclass(frozen=True)
class RoundReport:
    """What happened in a round, for the record: each participant's metrics."""

    round: int
    lr: float
    clients: dict[str, dict[str, float]]


@dataclass(frozen=True)
class Rounds:
    """How the server runs rounds: their number, the learning rate over them, who takes part, who runs how long."""

    train: TrainConfig
    seed: int
    participants: int | None = None
    """Clients sampled per round without replacement; None takes all."""
    equal_sizes: bool = True
    """If False every client runs the mean number of iterations per epoch of all clients (unequal data)."""

    def lr(self, number: int) -> float:
        """The learning rate of a round, counted from 0."""
        if self.train.schedule == "constant":
            return self.train.lr
        return self.train.lr * (1 + math.cos(math.pi * number / self.train.rounds)) / 2

    def sample(self, number: int, members: Sequence[Member]) -> list[Member]:
        """The participants of a round, in the order of the members."""
        if self.participants is None or self.participants >= len(members):
            return list(members)
        random = generator(self.seed, "round", number, "participants")
        chosen = torch.randperm(len(members), generator=random)[: self.participants]
        return [members[i] for i in sorted(chosen.tolist())]

    def steps(self, members: Sequence[Member]) -> int | None:
        """The fixed number of iterations when sizes differ; None means whole epochs."""
        if self.equal_sizes:
            return None
        per_epoch = [steps_per_epoch(member.samples, self.train.batch_size) for member in members]
        return self.train.local_epochs * max(1, round(sum(per_epoch) / len(per_epoch)))


def initial_state(net: DualNet, members: Iterable[Member], method: Method) -> ServerState:
    """Before the first round: everybody has the initial network."""
    names = layout(net, method.local)
    values = tensors(net)
    return ServerState(
        round=0,
        shared={name: values[name].clone() for name in values if name in names.shared},
        personal={m.id: {name: values[name].clone() for name in values if name in names.personal} for m in members},
    )


def federate(
    state: ServerState,
    members: Sequence[Member],
    method: Method,
    names: Layout,
    execute: Execute,
    rounds: Rounds,
    aggregate: Aggregate = mean,
) -> Iterator[tuple[ServerState, RoundReport]]:
    """Algorithm 2 from `state` on: yields the state after each round, and a report of that round."""
    steps = rounds.steps(members)
    while state.round < rounds.train.rounds:
        round_ = Round(
            number=state.round,
            seed=rounds.seed,
            method=method,
            shared=state.shared,
            lr=rounds.lr(state.round),
            batch_size=rounds.train.batch_size,
            local_epochs=rounds.train.local_epochs,
            steps=steps,
        )
        jobs = [_train_job(state, member, members, method) for member in rounds.sample(state.round, members)]
        inbox = _Inbox({m.id: m for m in members})
        arrived = in_order(execute(round_, jobs), [job.client for job in jobs])
        shared = aggregate(state.shared, inbox.contributions(arrived))
        state = _next_state(state, shared, inbox, members, method, names)
        yield state, RoundReport(state.round, round_.lr, inbox.metrics)


def predicting_branch(state: ServerState, member: Member, members: Iterable[Member], method: Method) -> Branch:
    """The branch a client predicts with: the method's, unless nobody has filled this client's BN_a yet."""
    if method.predict is Branch.CLEAN:
        return Branch.CLEAN
    own = member.role is Role.AT and member.id in state.reported
    received = bool(donors(state, members)) and (method.propagation is not None or method.local is Local.NOTHING)
    return Branch.NOISED if own or received else Branch.CLEAN


def donors(state: ServerState, members: Iterable[Member]) -> list[str]:
    """AT users that have reported: only they have statistics of adversarial inputs to give."""
    return [member.id for member in members if member.role is Role.AT and member.id in state.reported]


def in_order(results: Iterable[Result], clients: Sequence[str]) -> Iterator[Result]:
    """Results in the order of the clients, whatever order they arrive in: sums must not depend on who was faster."""
    early: dict[str, Result] = {}
    awaited = iter(clients)
    turn = next(awaited, None)
    for result in results:
        early[result.client] = result
        while turn in early:
            yield early.pop(turn)
            turn = next(awaited, None)
    if turn is not None:
        raise FederationError(f"got no answer from client {turn!r}; expected one answer from each of {len(clients)}.")


class _Inbox:
    """Takes a round's results as they are folded and keeps the small part of each."""

    def __init__(self, members: dict[str, Member]) -> None:
        self.members = members
        self.uploads: dict[str, Upload] = {}
        self.metrics: dict[str, dict[str, float]] = {}

    def contributions(self, results: Iterable[Result]) -> Iterator[Contribution]:
        for result in results:
            if isinstance(result, Failure):
                raise FederationError(
                    f"client {result.client!r} failed in round {result.round + 1}: {result.cause}"
                )
            if not isinstance(result, Upload):
                raise FederationError(f"got {type(result).__name__} from {result.client!r}; expected an Upload.")
            shared = result.shared
            self.metrics[result.client] = result.metrics
            self.uploads[result.client] = Upload(
                result.client, result.round, {}, result.personal, result.samples, result.metrics
            )
            yield Contribution(result.client, shared, float(result.samples))


def _train_job(state: ServerState, member: Member, members: Sequence[Member], method: Method) -> Train:
    calibrate = (
        member.role is Role.ST
        and method.calibration is not None
        and state.round >= method.warmup
        and bool(donors(state, members))
    )
    return Train(member.id, member.role, state.personal[member.id], calibrate)


def _next_state(
    state: ServerState, shared: dict[str, torch.Tensor], inbox: _Inbox, members: Sequence[Member], method: Method,
    names: Layout,
) -> ServerState:
    """Store what each client uploaded of its batch norm, then re-estimate the BN_a of every ST user (Eqs. 3-4)."""
    number = state.round + 1
    personal = dict(state.personal)
    for client, upload in inbox.uploads.items():
        personal[client] = personal[client] | upload.personal
    reported = state.reported | dict.fromkeys(inbox.uploads, number)
    state = ServerState(number, shared, personal, reported)
    if method.propagation is not None:
        receivers = [member.id for member in members if member.role is Role.ST]
        estimates = propagate(personal, receivers, donors(state, members), names.batch_norms, method.propagation)
        for client, estimate in estimates.items():
            personal[client] = personal[client] | estimate
    return state

