"""A client that joins a running federation: it gets θ like all clients, and a batch norm to start from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from fedrbn.errors import UploadError
from fedrbn.federated.aggregation.mean import Contribution, mean
from fedrbn.federated.protocol import ServerState, Upload
from fedrbn.federated.server import Plan, initial_state, propagated
from fedrbn.federated.uploads.validation import UploadCheck, length, scratch
from fedrbn.nets.dual_bn import DualNet
from fedrbn.types import Member, Role, Tensors

Refuse = Callable[[str, str], None]
"""Called with a client whose batch norm is not used, and the reason."""


def with_newcomers(
    state: ServerState, plan: Plan, net: DualNet, own: Mapping[str, Tensors], refuse: Refuse = lambda _, __: None
) -> ServerState:
    """The state with a batch norm for every member of the plan.

    A client that the server does not know gets back its own stored batch norm, if that is in `own` and passes the
    checks of an upload. All others start from the mean of the clients that have trained, weighted by samples. BN_a of
    an ST client is then estimated from the donors (Eq. 3), with equal weights as long as nothing is known about the
    client's own data.
    """
    new = [member for member in plan.members if member.id not in state.personal]
    if not new:
        return state
    start = _start(state, plan, net)
    own = _sound(own, new, start, plan, refuse)
    personal = state.personal | {member.id: start | own.get(member.id, {}) for member in new}
    receivers = [member.id for member in new if member.role is Role.ST]
    trained = [client for client in receivers if client in own]  # their stored batch norm reflects their own data
    known = replace(state, personal=personal, reported=state.reported | dict.fromkeys(trained, state.round))
    estimates = propagated(known, plan, receivers)
    return replace(state, personal=personal | {client: personal[client] | own for client, own in estimates.items()})


def _sound(
    own: Mapping[str, Tensors], members: Sequence[Member], start: Tensors, plan: Plan, refuse: Refuse
) -> dict[str, Tensors]:
    """The batch norms that would be valid uploads of clients that started from `start`; includes BN_a for all roles."""
    lengths = {name: length(tensor) for name, tensor in start.items() if tensor.is_floating_point()}
    names, found, place = replace(plan.names, shared=frozenset()), dict[str, Tensors](), scratch()
    for member in members:
        if member.id not in own:
            continue
        check = UploadCheck(replace(member, duty=Role.AT.duty), start, lengths, names, plan.faults.max_update, place)
        try:
            check.admit(Upload(member.id, 0, {}, own[member.id], member.samples, {"loss": 0.0}))
        except UploadError as error:
            refuse(member.id, str(error))
        else:
            found[member.id] = own[member.id]
    return found


def _start(state: ServerState, plan: Plan, net: DualNet) -> Tensors:
    """The mean batch norm of all clients that have trained, for BN_a of the AT users; the initial one if none have."""
    initial = next(iter(initial_state(net, plan).personal.values()))
    trained = [member for member in plan.members if member.id in state.reported]
    floats = {name: value for name, value in initial.items() if value.is_floating_point()}
    contributions = [_contribution(state, member, floats, plan.names.noised) for member in trained]
    return initial | mean(floats, contributions)


def _contribution(
    state: ServerState, member: Member, names: Sequence[str] | Tensors, noised: frozenset[str]
) -> Contribution:
    own = state.personal[member.id]
    kept = {name: own[name] for name in names if member.role is Role.AT or name not in noised}
    return Contribution(member.id, kept, float(member.samples))
