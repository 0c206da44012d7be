"""Which branch of batch norm a client predicts with: BN_a only after it was trained or estimated."""

from __future__ import annotations

from fedrbn.federated.aggregation.layout import Local
from fedrbn.federated.protocol import ServerState
from fedrbn.federated.server import Plan, donors, has_own_noised
from fedrbn.types import Branch, Member, Role


def predicting_branch(plan: Plan, state: ServerState, member: Member) -> Branch:
    """The branch a client predicts with: the method's, or BN_c if the client has no trained or estimated BN_a yet."""
    return _usable(plan, plan.method.predict, state, member)


def selecting_branch(plan: Plan, state: ServerState, member: Member) -> Branch:
    """The branch of a client that counts in the choice of the best round."""
    return _usable(plan, plan.method.select or plan.method.predict, state, member)


def _usable(plan: Plan, wanted: Branch, state: ServerState, member: Member) -> Branch:
    method = plan.method
    if wanted is Branch.CLEAN:
        return Branch.CLEAN
    own = has_own_noised(state, plan, member)
    propagated = method.propagation is not None and member.role is Role.ST
    received = bool(donors(state, plan)) and (propagated or method.local is Local.NOTHING)
    return Branch.NOISED if own or received else Branch.CLEAN
