"""What a client starts from that joins a federation under way, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from federated.tiny import clients, network, plan
from fedrbn.attacks import PGD
from fedrbn.federated.methods import fatavg, fedrbn
from fedrbn.federated.protocol import ServerState
from fedrbn.federated.server import initial_state
from fedrbn.flower.newcomers import with_newcomers
from fedrbn.types import Role, Tensors

METHOD = fedrbn(PGD())
NET = METHOD.network(network())
CLIENTS = clients((Role.AT, 10), (Role.ST, 30), (Role.ST, 20), (Role.AT, 20))
PLAN = plan(METHOD, NET, list(CLIENTS.values()))
CLEAN, NOISED = "network.2.clean.running_mean", "network.2.noised.running_mean"


def _batch_norm(clean: float, noised: float) -> Tensors:
    own = next(iter(initial_state(NET, PLAN).personal.values()))
    return own | {CLEAN: torch.full((3,), clean), NOISED: torch.full((3,), noised)}


STATE = ServerState(
    round=5,
    shared=initial_state(NET, PLAN).shared,
    personal={"c0": _batch_norm(1.0, 7.0), "c1": _batch_norm(5.0, 9.0)},
    reported={"c0": 5, "c1": 4},
)


def test_newcomers_start_from_the_mean_and_get_bn_a_of_the_donors() -> None:
    """BN_c: c0 has 10 samples and c1 has 30, so (10·1 + 30·5) / 40 = 4. BN_a: c0 is the only AT user that has trained,
    so 7; that of c1 is an estimate and does not count."""
    state = with_newcomers(STATE, PLAN, NET, {})
    for client in ("c2", "c3"):
        torch.testing.assert_close(state.personal[client][CLEAN], torch.full((3,), 4.0))
        torch.testing.assert_close(state.personal[client][NOISED], torch.full((3,), 7.0))
        assert state.personal[client].keys() == state.personal["c0"].keys(), "counts of batches too"
    assert (state.round, state.shared, state.reported) == (STATE.round, STATE.shared, STATE.reported)
    assert state.personal["c0"] is STATE.personal["c0"], "the others keep theirs"


def test_what_a_client_has_kept_is_what_it_goes_on_with() -> None:
    """An ST client's BN_a is estimated anew in any case: 7 again, from the only donor. An AT client's is its own."""
    kept = {"c2": _batch_norm(2.5, 3.5), "c3": _batch_norm(2.0, 3.0)}
    state = with_newcomers(STATE, PLAN, NET, kept)
    for client, clean, noised in (("c2", 2.5, 7.0), ("c3", 2.0, 3.0)):
        torch.testing.assert_close(state.personal[client][CLEAN], torch.full((3,), clean))
        torch.testing.assert_close(state.personal[client][NOISED], torch.full((3,), noised))


VARIANCE, VARIANCE_A = "network.2.clean.running_var", "network.2.noised.running_var"


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        (VARIANCE, -1.0, "got a variance of -1"),
        (VARIANCE, 3e38, "got statistics of norm"),
        (VARIANCE_A, -1.0, "got a variance of -1"),
        (NOISED, 1.4e28, "the noised branch of batch-norm layer 'network.2'"),
        (NOISED, float("nan"), "NaN or infinite"),
        (CLEAN, float("inf"), "NaN or infinite"),
        ("network.2.clean.weight", 1e9, "times as long as the weights"),
    ],
)
@pytest.mark.parametrize("client", ["c2", "c3"])
def test_what_a_client_has_kept_passes_the_checks_of_an_upload(
    client: str, name: str, value: float, reason: str
) -> None:
    """c2 is ST and c3 is AT. Either starts like anybody new instead, from 4 and 7 as above."""
    kept = _batch_norm(2.5, 3.5)
    refused: dict[str, str] = {}
    poisoned = kept | {name: torch.full_like(kept[name], value)}
    state = with_newcomers(STATE, PLAN, NET, {client: poisoned}, refused.__setitem__)
    assert reason in refused[client]
    torch.testing.assert_close(state.personal[client][CLEAN], torch.full((3,), 4.0))
    torch.testing.assert_close(state.personal[client][NOISED], torch.full((3,), 7.0))
    sound = with_newcomers(STATE, PLAN, NET, {client: kept}, refused.__setitem__)
    assert not sound.personal[client][CLEAN].eq(4.0).any()


def test_before_anybody_has_trained_it_is_the_initial_network() -> None:
    fresh = replace(initial_state(NET, PLAN), personal={})
    state = with_newcomers(fresh, PLAN, NET, {})
    for client, own in initial_state(NET, PLAN).personal.items():
        assert all(torch.equal(value, state.personal[client][name]) for name, value in own.items())


def test_nobody_new_changes_nothing() -> None:
    known = initial_state(NET, PLAN)
    assert with_newcomers(known, PLAN, NET, {}) is known


def test_methods_that_keep_nothing_local_have_little_to_give() -> None:
    method = fatavg(PGD())
    net = method.network(network())
    chosen = plan(method, net, list(CLIENTS.values()))
    start = initial_state(net, chosen)
    state = with_newcomers(replace(start, personal={"c0": start.personal["c0"]}, reported={"c0": 1}), chosen, net, {})
    assert set(state.personal) == set(CLIENTS)
    assert state.personal["c3"].keys() == start.personal["c3"].keys()
