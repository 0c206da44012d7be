"""Algorithm 2: the server's rounds, as a generator. Logging, validation, checkpoints and stopping are the caller's."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from fedrbn.config import ConfigError, TrainConfig
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
class Phase:
    """A stretch of rounds with the same participants; fine-tuning has two."""

    start: int
    rounds: int
    roles: frozenset[Role] = frozenset(Role)
    """Who takes part."""
    iterations: int | None = None
    """Steps that every client takes in all of the phase; None is whole rounds."""
    freeze: int = 0
    """So many of the network's first layers are left as they are."""


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

    def __post_init__(self) -> None:
        missing = [role.value for role in Role if role not in {member.role for member in self.members}]
        if self.method.fine_tuning is not None and missing:
            raise ConfigError(
                f"got method {self.method.name!r} without {missing[0]} users; expected users of both roles, because "
                "AT users train first and ST users fine-tune what they trained. Change federation.at."
            )

    @property
    def phases(self) -> tuple[Phase, ...]:
        """All rounds: `train.rounds` of them, fewer with Free AT, whose rounds cost more; then fine-tuning, if any."""
        first = Phase(0, math.ceil(self.train.rounds / self.method.replays))
        tuning = self.method.fine_tuning
        if tuning is None:
            return (first,)
        second = math.ceil(tuning.iterations / self._steps_per_round())
        return (
            replace(first, roles=frozenset({Role.AT})),
            Phase(first.rounds, second, frozenset({Role.ST}), tuning.iterations, tuning.freeze),
        )

    @property
    def rounds(self) -> int:
        """How many rounds there are."""
        return sum(phase.rounds for phase in self.phases)

    def phase(self, number: int) -> Phase:
        """The phase of a round, counted from 0; after the last round it is the last phase."""
        return [phase for phase in self.phases if phase.start <= number][-1]

    def may_choose(self, finished: int) -> bool:
        """Whether the state after so many rounds is one that validation may choose: any of the last phase."""
        return finished > self.phases[-1].start

    def lr(self, number: int) -> float:
        """The learning rate of a round, counted from 0; a schedule starts anew in each phase."""
        rate = self.method.rate or self.train.lr
        if self.train.schedule == "constant":
            return rate
        phase = self.phase(number)
        return rate * (1 + math.cos(math.pi * (number - phase.start) / phase.rounds)) / 2

    def sample(self, number: int) -> list[Member]:
        """The participants of a round, in the order of the members."""
        members = [member for member in self.members if member.role in self.phase(number).roles]
        if self.participants is None or self.participants >= len(members):
            return members
        random = generator(self.seed, "round", number, "participants")
        chosen = torch.randperm(len(members), generator=random)[: self.participants]
        return [members[i] for i in sorted(chosen.tolist())]

    def steps(self, number: int = 0) -> int | None:
        """The fixed number of iterations when sizes differ or iterations are counted; None means whole epochs."""
        phase = self.phase(number)
        if phase.iterations is not None:
            usual = self._steps_per_round()
            return max(1, min(usual, phase.iterations - (number - phase.start) * usual))
        return None if self.equal_sizes else self._steps_per_round()

    def _steps_per_round(self) -> int:
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
            steps=self.steps(state.round),
            freeze=self.phase(state.round).freeze,
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
    while state.round < plan.rounds:
        round_ = plan.round(state)
        jobs = [_train_job(state, member, plan) for member in plan.sample(state.round)]
        inbox = _Inbox({job.client for job in jobs if job.role is Role.AT})
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

    def __init__(self, adversarial: Collection[str]) -> None:
        self.adversarial = adversarial
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
            loss = result.metrics.get("loss") if result.client in self.adversarial else None
            yield Contribution(result.client, result.shared, float(result.samples), loss)


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
