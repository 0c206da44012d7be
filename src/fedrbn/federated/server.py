"""Algorithm 2: the server's rounds, as a generator. Logging, validation, checkpoints and stopping are the caller's."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from fedrbn.config import TrainConfig
from fedrbn.federated.aggregation import Aggregate, Contribution, Layout, Local, mean
from fedrbn.federated.client import steps_per_epoch
from fedrbn.federated.methods import Method
from fedrbn.federated.propagation import propagate
from fedrbn.nets.dual_bn import DualNet, tensors
from fedrbn.randomness import generator
from fedrbn.types import Branch, Execute, Failure, Member, Result, Role, Round, ServerState, Tensors, Train, Upload


class FederationError(RuntimeError):
    """A client could not do its part, so the round could not be finished."""


@dataclass(frozen=True)
class RoundReport:
    """What happened in a round, for the record: each participant's metrics."""

    round: int
    lr: float
    clients: dict[str, dict[str, float]]


@dataclass(frozen=True)
class Plan:
    """What the server does: with whom, by which method, for how many rounds."""

    members: tuple[Member, ...]
    method: Method
    names: Layout
    """Which tensors of the network are shared, and which stay with their client."""
    train: TrainConfig
    seed: int
    participants: int | None = None
    """Clients sampled per round without replacement; None takes all."""
    equal_sizes: bool = True
    """If False every client runs the mean number of iterations per epoch of all clients (unequal data)."""
    aggregate: Aggregate = mean

    def lr(self, number: int) -> float:
        """The learning rate of a round, counted from 0."""
        if self.train.schedule == "constant":
            return self.train.lr
        return self.train.lr * (1 + math.cos(math.pi * number / self.train.rounds)) / 2

    def sample(self, number: int) -> list[Member]:
        """The participants of a round, in the order of the members."""
        if self.participants is None or self.participants >= len(self.members):
            return list(self.members)
        random = generator(self.seed, "round", number, "participants")
        chosen = torch.randperm(len(self.members), generator=random)[: self.participants]
        return [self.members[i] for i in sorted(chosen.tolist())]

    def steps(self) -> int | None:
        """The fixed number of iterations when sizes differ; None means whole epochs."""
        if self.equal_sizes:
            return None
        per_epoch = [steps_per_epoch(member.samples, self.train.batch_size) for member in self.members]
        return self.train.local_epochs * max(1, round(sum(per_epoch) / len(per_epoch)))

    def donors(self, state: ServerState) -> list[str]:
        """AT users that have reported: only they have statistics of adversarial inputs to give."""
        return [member.id for member in self.members if member.role is Role.AT and member.id in state.reported]

    def predicting_branch(self, state: ServerState, member: Member) -> Branch:
        """The branch a client predicts with: the method's, unless nobody has filled this client's BN_a yet."""
        method = self.method
        if method.predict is Branch.CLEAN:
            return Branch.CLEAN
        own = member.role is Role.AT and member.id in state.reported
        propagated = method.propagation is not None and member.role is Role.ST
        received = bool(self.donors(state)) and (propagated or method.local is Local.NOTHING)
        return Branch.NOISED if own or received else Branch.CLEAN

    def round(self, state: ServerState) -> Round:
        """What all clients need to know of the round after this state."""
        return Round(
            number=state.round,
            seed=self.seed,
            method=self.method,
            shared=state.shared,
            lr=self.lr(state.round),
            batch_size=self.train.batch_size,
            local_epochs=self.train.local_epochs,
            steps=self.steps(),
        )


def initial_state(net: DualNet, plan: Plan) -> ServerState:
    """Before the first round: everybody has the initial network."""
    values = tensors(net)

    def copied(names: frozenset[str]) -> Tensors:
        return {name: tensor.to("cpu", copy=True) for name, tensor in values.items() if name in names}

    return ServerState(
        round=0,
        shared=copied(plan.names.shared),
        personal={member.id: copied(plan.names.personal) for member in plan.members},
    )


def federate(state: ServerState, plan: Plan, execute: Execute) -> Iterator[tuple[ServerState, RoundReport]]:
    """Algorithm 2 from `state` on: yields the state after each round, and a report of that round."""
    while state.round < plan.train.rounds:
        round_ = plan.round(state)
        jobs = [_train_job(state, member, plan) for member in plan.sample(state.round)]
        inbox = _Inbox()
        arrived = in_order(execute(round_, jobs), [job.client for job in jobs])
        shared = plan.aggregate(state.shared, inbox.contributions(arrived))
        state = _next_state(state, shared, inbox.personal, plan)
        yield state, RoundReport(state.round, round_.lr, inbox.metrics)


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
    """Hands the large part of each upload on to be folded, and keeps the small part."""

    def __init__(self) -> None:
        self.personal: dict[str, Tensors] = {}
        self.metrics: dict[str, dict[str, float]] = {}

    def contributions(self, results: Iterable[Result]) -> Iterator[Contribution]:
        for result in results:
            if isinstance(result, Failure):
                raise FederationError(f"client {result.client!r} failed in round {result.round + 1}: {result.cause}")
            if not isinstance(result, Upload):
                raise FederationError(f"got {type(result).__name__} from {result.client!r}; expected an Upload.")
            self.personal[result.client] = result.personal
            self.metrics[result.client] = result.metrics
            yield Contribution(result.client, result.shared, float(result.samples))


def _train_job(state: ServerState, member: Member, plan: Plan) -> Train:
    calibrate = (
        member.role is Role.ST
        and plan.method.calibration is not None
        and state.round >= plan.method.warmup
        and bool(plan.donors(state))
    )
    return Train(member.id, member.role, state.personal[member.id], calibrate)


def _next_state(state: ServerState, shared: Tensors, uploaded: dict[str, Tensors], plan: Plan) -> ServerState:
    """Store what each client uploaded of its batch norm, then re-estimate the BN_a of every ST user (Eqs. 3-4)."""
    number = state.round + 1
    personal = state.personal | {client: state.personal[client] | own for client, own in uploaded.items()}
    state = ServerState(number, shared, personal, state.reported | dict.fromkeys(uploaded, number))
    if plan.method.propagation is None:
        return state
    receivers = [member.id for member in plan.members if member.role is Role.ST]
    donors = plan.donors(state)
    estimates = propagate(personal, receivers, donors, plan.names.batch_norms, plan.method.propagation)
    return replace(state, personal=personal | {client: personal[client] | own for client, own in estimates.items()})
