"""Algorithm 2: the server's rounds as a generator. The caller handles logging, validation, checkpoints and stopping."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from fedrbn.config import FaultsConfig, TrainConfig
from fedrbn.errors import ConfigError
from fedrbn.federated.aggregation.layout import Layout
from fedrbn.federated.aggregation.mean import Aggregate, Contribution, carried, mean
from fedrbn.federated.methods import Method
from fedrbn.federated.propagation import DonorFreshness, propagate
from fedrbn.federated.protocol import Execute, Failure, Round, ServerState, Train
from fedrbn.federated.schedule import Schedule
from fedrbn.federated.uploads.collection import TooFewClientsError, UploadCollector
from fedrbn.federated.uploads.quorum import shortage
from fedrbn.federated.uploads.validation import Movement, UploadCheck, length, scratch
from fedrbn.nets.dual_bn import DualNet
from fedrbn.nets.state import tensors
from fedrbn.types import Branch, Member, Role, Tensors

_FAINTEST = 1e-12
"""A stale donor keeps at least this weight: if no other donor is left, its statistics are the best available."""


@dataclass(frozen=True)
class RoundReport:
    """What happened in a round, for the record: the metrics of each client whose update counted, and what failed."""

    round: int
    lr: float
    clients: dict[str, dict[str, float]]
    failures: tuple[Failure, ...] = ()
    moved: dict[str, Movement] = field(default_factory=dict)
    """The size of each client's update, and the layer that moved most."""


@dataclass(frozen=True)
class Plan:
    """What the server does: which clients, which method, how many rounds."""

    members: tuple[Member, ...]
    method: Method
    names: Layout
    """Which tensors of the network are shared and which stay with their client."""
    train: TrainConfig
    seed: int
    participants: int | None = None
    """Clients sampled per round without replacement; None uses all."""
    equal_sizes: bool = True
    """If False, every client runs the mean number of iterations per epoch of all clients (unequal data)."""
    aggregate: Aggregate = mean
    faults: FaultsConfig = field(default_factory=FaultsConfig)
    silenced: frozenset[str] = frozenset()
    """AT users that do not donate statistics, because the operator of the server does not trust them."""

    def __post_init__(self) -> None:
        asked = min(self.participants or len(self.members), len(self.members))
        if isinstance(self.faults.min_clients, int) and self.faults.min_clients > asked:
            raise ConfigError(
                f"got faults.min_clients = {self.faults.min_clients} with {asked} clients in a round; expected at most "
                "that many, or a share such as 0.5."
            )
        self._ensure_possible()
        missing = [role.value for role in Role if role not in {member.role for member in self.members}]
        if self.method.fine_tuning is not None and missing:
            raise ConfigError(
                f"got method {self.method.name!r} without {missing[0]} users; expected users of both roles, because "
                "AT users train first and ST users fine-tune what they trained. Change federation.at."
            )

    def _ensure_possible(self) -> None:
        for member in self.members:
            reason = self.method.refusal(member.duty)
            if reason is not None:
                raise ConfigError(
                    f"got the duty {member.duty} for client {member.id!r}; {reason}. Correct federation.duties."
                )

    @cached_property
    def schedule(self) -> Schedule:
        """Which clients train when."""
        return Schedule(self.members, self.method, self.train, self.seed, self.participants, self.equal_sizes)


def initial_state(net: DualNet, plan: Plan) -> ServerState:
    """The state before the first round: all clients have the initial network."""
    values = tensors(net)

    def copied(names: frozenset[str]) -> Tensors:
        return {name: tensor.to("cpu", copy=True) for name, tensor in values.items() if name in names}

    return ServerState(
        round=0,
        shared=copied(plan.names.shared),
        personal={member.id: copied(plan.names.personal) for member in plan.members},
    )


def state_mismatch(state: ServerState, net: DualNet, plan: Plan) -> str | None:
    """What in a state does not match this network and these members; None if it matches."""
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
    """Algorithm 2 starting from `state`: yields the state after each round and a report of that round."""
    while state.round < plan.schedule.rounds:
        state, report = play_round(state, plan, execute)
        yield state, report


def play_round(state: ServerState, plan: Plan, execute: Execute) -> tuple[ServerState, RoundReport]:
    """The body of Algorithm 2: one round, from the state before it to the state after it.

    It continues without the clients that fail, as long as `faults.min_clients` of them answer. With fewer it asks the
    others again or raises `TooFewClientsError`, depending on `faults.on_too_few`.
    """
    round_ = round_of(state, plan)
    asked = plan.schedule.sample(state.round)
    collector = UploadCollector(state.round, _upload_checks(state, asked, plan))
    shared = plan.aggregate(state.shared, _contributions(collector, round_, state, asked, plan, execute))
    state = _next_state(_moved(state, shared, plan), asked, collector.personal, plan)
    return state, RoundReport(state.round, round_.lr, collector.metrics, tuple(collector.failures), collector.moved)


def round_of(state: ServerState, plan: Plan) -> Round:
    """What all clients need to know about the round after this state."""
    schedule = plan.schedule
    return Round(
        number=state.round,
        seed=plan.seed,
        method=plan.method,
        shared=state.shared,
        lr=schedule.lr(state.round),
        batch_size=plan.train.batch_size,
        local_epochs=plan.train.local_epochs,
        steps=schedule.steps(state.round),
        freeze=schedule.phase(state.round).freeze,
        deadline_seconds=plan.faults.deadline_seconds,
    )


def _contributions(
    collector: UploadCollector, round_: Round, state: ServerState, asked: list[Member], plan: Plan, execute: Execute
) -> Iterator[Contribution]:
    """The clients' contributions; failed clients are asked again while there are too few and waiting is enabled."""
    jobs = {member.id: _train_job(state, member, plan) for member in asked}
    yield from collector.contributions(execute(round_, jobs.values()))
    while lacking := shortage(plan.faults, asked, collector.personal):
        if plan.faults.on_too_few == "stop":
            raise TooFewClientsError(round_.number, lacking, collector.failures)
        time.sleep(plan.faults.wait_seconds)
        yield from collector.contributions(execute(round_, [jobs[client] for client in collector.missing()]))


def _upload_checks(state: ServerState, asked: list[Member], plan: Plan) -> dict[str, UploadCheck]:
    """The check for each client's upload."""
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
        and bool(donors(state, plan))
    )
    return Train(member.id, member.duty, state.personal[member.id], calibrate)


def _moved(state: ServerState, shared: Tensors, plan: Plan) -> ServerState:
    """The state with the round's weights, plus the method's momentum if it has one; a phase starts without momentum."""
    if not plan.method.momentum:
        return replace(state, shared=shared)
    statistics = {name for layer in plan.names.batch_norms for name in layer.statistics}
    old = {name: tensor for name, tensor in state.shared.items() if name not in statistics}
    velocity = {} if state.round == plan.schedule.phase(state.round).start else state.velocity
    new = carried({name: shared[name] for name in old}, velocity, plan.method.momentum)
    return replace(state, shared={**shared, **new}, velocity={name: new[name] - tensor for name, tensor in old.items()})


def _next_state(state: ServerState, asked: list[Member], uploaded: dict[str, Tensors], plan: Plan) -> ServerState:
    """Store each client's uploaded batch norm, then re-estimate the BN_a of every ST user (Eqs. 3-4)."""
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
    receivers = [member.id for member in plan.members if member.role is Role.ST]
    estimates = propagated(state, plan, receivers)
    return replace(state, personal=personal | {client: personal[client] | own for client, own in estimates.items()})


def donors(state: ServerState, plan: Plan) -> list[str]:
    """AT users, with any share of adversarial batches, that have reported statistics of adversarial inputs."""
    heard = state.reported.keys() - plan.silenced
    return [member.id for member in plan.members if member.id in heard and has_own_noised(state, plan, member)]


def has_own_noised(state: ServerState, plan: Plan, member: Member) -> bool:
    """Whether a client has trained a BN_a: an AT user that has reported after adversarial batches."""
    if member.role is Role.ST or member.id not in state.reported:
        return False
    if member.duty.at_share == 1:
        return True
    own = state.personal[member.id]
    counts = [own[layer.count] for layer in plan.names.batch_norms if layer.branch is Branch.NOISED]
    return not counts or any(int(count) > 0 for count in counts)


def propagated(state: ServerState, plan: Plan, receivers: Sequence[str]) -> dict[str, Tensors]:
    """Eqs. 3-4 for these receivers in this state: their estimated BN_a, by name; empty if there are no donors."""
    givers, settings = donors(state, plan), plan.method.propagation
    if settings is None or not givers:
        return {}
    known = freshness(state, plan, receivers)
    return propagate(state.personal, receivers, givers, plan.names.batch_norms, settings, known)


def donor_weights(state: ServerState, plan: Plan, receivers: Sequence[str]) -> tuple[list[str], Tensor]:
    """The donors, and the weights α that `propagated` uses: a row for each receiver, a column for each donor."""
    givers, settings = donors(state, plan), plan.method.propagation
    if settings is None or not givers:
        return [], torch.zeros(len(receivers), 0)
    known = freshness(state, plan, receivers)
    return givers, settings.weights(state.personal, receivers, givers, plan.names.batch_norms, known)


def freshness(state: ServerState, plan: Plan, receivers: Sequence[str]) -> DonorFreshness:
    """Receivers that have not trained yet, and the factor for each stale donor's weight in Eq. 4.

    The factor is ½ per `faults.stale_half_life` missed answers. A client that was not sampled has missed nothing.
    """
    stale = {client: state.missed[client] for client in donors(state, plan) if client in state.missed}
    half_life = plan.faults.stale_half_life
    fading = {client: max(0.5 ** (times / half_life), _FAINTEST) for client, times in stale.items()}
    return DonorFreshness(frozenset(receivers) - state.reported.keys(), fading)
