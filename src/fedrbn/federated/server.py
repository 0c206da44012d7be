"""Algorithm 2: the server's rounds, as a generator. Logging, validation, checkpoints and stopping are the caller's."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch

from fedrbn.config import FaultsConfig, TrainConfig
from fedrbn.errors import ConfigError
from fedrbn.federated.aggregation.layout import Layout, Local
from fedrbn.federated.aggregation.mean import Aggregate, Contribution, carried, mean
from fedrbn.federated.client import steps_per_epoch
from fedrbn.federated.methods import Method
from fedrbn.federated.propagation import DonorFreshness, propagate
from fedrbn.federated.protocol import Execute, Failure, Round, ServerState, Train
from fedrbn.federated.uploads.collection import TooFewClientsError, UploadCollector
from fedrbn.federated.uploads.validation import Movement, UploadCheck, length, scratch
from fedrbn.nets.dual_bn import DualNet
from fedrbn.nets.state import tensors
from fedrbn.randomness import generator
from fedrbn.types import Branch, Member, Role, Tensors

_FAINTEST = 1e-12
"""A donor is never forgotten altogether: where no other is left, its statistics are the best that there are."""


@dataclass(frozen=True)
class RoundReport:
    """What happened in a round, for the record: the metrics of each client whose update counted, and what failed."""

    round: int
    lr: float
    clients: dict[str, dict[str, float]]
    failures: tuple[Failure, ...] = ()
    moved: dict[str, Movement] = field(default_factory=dict)
    """How far each client's update went, and in which layer most."""


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
    faults: FaultsConfig = field(default_factory=FaultsConfig)
    silenced: frozenset[str] = frozenset()
    """AT users whose statistics nobody receives, because whoever runs the server does not trust them."""

    def __post_init__(self) -> None:
        asked = min(self.participants or len(self.members), len(self.members))
        if isinstance(self.faults.min_clients, int) and self.faults.min_clients > asked:
            raise ConfigError(
                f"got faults.min_clients = {self.faults.min_clients} with {asked} clients in a round; expected at most "
                "that many, or a share such as 0.5."
            )
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

    def shortage(self, asked: Sequence[Member], answered: Collection[str]) -> str | None:
        """What the round lacks to count, given who was asked and whose answers are good; None if it counts.

        A share is wanted of each role: a round that has lost its AT users would not be what it says it is.
        """
        fewest = self.faults.min_clients
        groups = {f"{role.value} users": [member for member in asked if member.role is role] for role in Role}
        if isinstance(fewest, int):
            groups = {"clients": list(asked)}
        for name, group in groups.items():
            good = sum(member.id in answered for member in group)
            share = math.ceil(round(fewest * len(group), 9))  # 0.7 · 10 is a little more than 7
            needed = min(fewest, len(group)) if isinstance(fewest, int) else share
            if good < needed:
                return f"got good answers of {good} of {len(group)} {name}; expected at least {needed}"
        return None

    def donors(self, state: ServerState) -> list[str]:
        """AT users that have reported: only they have statistics of adversarial inputs to give."""
        heard = state.reported.keys() - self.silenced
        return [member.id for member in self.members if member.role is Role.AT and member.id in heard]

    def fading(self, state: ServerState) -> dict[str, float]:
        """What each stale donor's weight in Eq. 4 is multiplied by: ½ per `faults.stale_half_life` missed answers.

        A client that was merely not sampled has missed nothing.
        """
        stale = {client: state.missed[client] for client in self.donors(state) if client in state.missed}
        half_life = self.faults.stale_half_life
        return {client: max(0.5 ** (times / half_life), _FAINTEST) for client, times in stale.items()}

    def predicting_branch(self, state: ServerState, member: Member) -> Branch:
        """The branch a client predicts with: the method's, unless nobody has filled this client's BN_a yet."""
        return self._usable(self.method.predict, state, member)

    def selecting_branch(self, state: ServerState, member: Member) -> Branch:
        """The branch of a client that counts when the best round is chosen."""
        return self._usable(self.method.select or self.method.predict, state, member)

    def _usable(self, wanted: Branch, state: ServerState, member: Member) -> Branch:
        method = self.method
        if wanted is Branch.CLEAN:
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
            deadline_seconds=self.faults.deadline_seconds,
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


def misfit(state: ServerState, net: DualNet, plan: Plan) -> str | None:
    """What in a state is not of this network and these members; None if it fits."""
    fresh = initial_state(net, plan)
    strangers = sorted(fresh.personal.keys() - state.personal.keys())
    if strangers:
        return f"no batch norm of client {strangers[0]!r}"
    moving = {name: tensor for name, tensor in fresh.shared.items() if name in state.velocity}
    places = [("the shared weights", state.shared, fresh.shared), ("the velocity", state.velocity, moving)]
    places += [(f"client {client!r}", state.personal[client], own) for client, own in fresh.personal.items()]
    for place, got, expected in places:
        for name in sorted(got.keys() | expected.keys()):
            mine, theirs = (part[name].shape if name in part else None for part in (got, expected))
            if mine != theirs:
                return f"{_sized(mine)} as tensor {name!r} of {place} where the network has {_sized(theirs)}"
    return None


def _sized(shape: torch.Size | None) -> str:
    return "nothing" if shape is None else f"shape {tuple(shape)}"


def federate(state: ServerState, plan: Plan, execute: Execute) -> Iterator[tuple[ServerState, RoundReport]]:
    """Algorithm 2 from `state` on: yields the state after each round, and a report of that round.

    A round goes on without the clients that fail, as long as `faults.min_clients` of them answer. With fewer it asks
    the others again or raises `TooFewClientsError`, as `faults.on_too_few` says; the states yielded before stay good.
    """
    while state.round < plan.rounds:
        round_ = plan.round(state)
        asked = plan.sample(state.round)
        collector = UploadCollector(state.round, _upload_checks(state, asked, plan))
        shared = plan.aggregate(state.shared, _contributions(collector, round_, state, asked, plan, execute))
        state = _next_state(_moved(state, shared, plan), asked, collector.personal, plan)
        yield state, RoundReport(state.round, round_.lr, collector.metrics, tuple(collector.failures), collector.moved)


def _contributions(
    collector: UploadCollector, round_: Round, state: ServerState, asked: list[Member], plan: Plan, execute: Execute
) -> Iterator[Contribution]:
    """What the clients contribute; those that failed are asked again while there are too few and it pays to wait."""
    jobs = {member.id: _train_job(state, member, plan) for member in asked}
    yield from collector.contributions(execute(round_, jobs.values()))
    while shortage := plan.shortage(asked, collector.personal):
        if plan.faults.on_too_few == "stop":
            raise TooFewClientsError(round_.number, shortage, collector.failures)
        time.sleep(plan.faults.wait_seconds)
        yield from collector.contributions(execute(round_, [jobs[client] for client in collector.missing()]))


def _upload_checks(state: ServerState, asked: list[Member], plan: Plan) -> dict[str, UploadCheck]:
    """What each client's upload is looked at with."""
    lengths = {name: length(tensor) for name, tensor in state.shared.items()}
    checks, place = {}, scratch()
    for member in asked:
        own = state.personal[member.id]
        theirs = lengths | {name: length(tensor) for name, tensor in own.items() if tensor.is_floating_point()}
        checks[member.id] = UploadCheck(
            member, {**state.shared, **own}, theirs, plan.names, plan.faults.max_update, place
        )
    return checks


def _train_job(state: ServerState, member: Member, plan: Plan) -> Train:
    calibrate = (
        member.role is Role.ST
        and plan.method.calibration is not None
        and state.round >= plan.method.warmup
        and bool(plan.donors(state))
    )
    return Train(member.id, member.role, state.personal[member.id], calibrate)


def _moved(state: ServerState, shared: Tensors, plan: Plan) -> ServerState:
    """The state with the round's weights, carried on by the method's momentum if it has one; a phase starts at rest."""
    if not plan.method.momentum:
        return replace(state, shared=shared)
    statistics = {name for layer in plan.names.batch_norms for name in layer.statistics}
    old = {name: tensor for name, tensor in state.shared.items() if name not in statistics}
    velocity = {} if state.round == plan.phase(state.round).start else state.velocity
    new = carried({name: shared[name] for name in old}, velocity, plan.method.momentum)
    return replace(state, shared={**shared, **new}, velocity={name: new[name] - tensor for name, tensor in old.items()})


def _next_state(state: ServerState, asked: list[Member], uploaded: dict[str, Tensors], plan: Plan) -> ServerState:
    """Store what each client uploaded of its batch norm, then re-estimate the BN_a of every ST user (Eqs. 3-4)."""
    number = state.round + 1
    personal = state.personal | {client: state.personal[client] | own for client, own in uploaded.items()}
    silent = {member.id: state.missed.get(member.id, 0) + 1 for member in asked if member.id not in uploaded}
    state = replace(
        state,
        round=number,
        personal=personal,
        reported=state.reported | dict.fromkeys(uploaded, number),
        missed={client: times for client, times in state.missed.items() if client not in uploaded} | silent,
    )
    if plan.method.propagation is None:
        return state
    receivers = [member.id for member in plan.members if member.role is Role.ST]
    donors = plan.donors(state)
    freshness = DonorFreshness(frozenset(receivers) - state.reported.keys(), plan.fading(state))
    estimates = propagate(personal, receivers, donors, plan.names.batch_norms, plan.method.propagation, freshness)
    return replace(state, personal=personal | {client: personal[client] | own for client, own in estimates.items()})
