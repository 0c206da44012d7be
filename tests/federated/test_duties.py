"""Duties: what a client with one minimises, who donates, where the weights of Eq. 3 come from, what a file may hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fedrbn.attacks import PGD
from fedrbn.config import ConfigError, from_toml, make
from fedrbn.cost.count import actual_macs, cost_of, paper_macs
from fedrbn.errors import DataError
from fedrbn.federated.assemble import assemble
from fedrbn.federated.methods import fatavg, fatavg_free, fedrbn, fedrbn_plus
from fedrbn.federated.objectives import Adversarial, Calibrated, Fractional, Standard
from fedrbn.federated.prediction import predicting_branch
from fedrbn.federated.protocol import Job, Result, Round, Train, Upload
from fedrbn.federated.server import Plan, donor_weights, donors, initial_state, play_round, propagated
from fedrbn.types import Branch, Duty, Member, Role

from .tiny import clients, network, plan

ATTACK = PGD(steps=2)
HALF, TENTH = Duty(at_share=0.5), Duty(at_share=0.1)
PLAIN = Duty(lam=0.0)


@pytest.mark.parametrize(
    ("duty", "role", "text"),
    [
        (Role.AT.duty, Role.AT, "AT"),
        (Role.ST.duty, Role.ST, "ST"),
        (HALF, Role.AT, "AT on 50 %"),
        (Duty(lam=0.25), Role.ST, "PNC, λ = 0.25"),
        (PLAIN, Role.ST, "plain ST"),
    ],
)
def test_a_role_follows_from_a_duty(duty: Duty, role: Role, text: str) -> None:
    assert (duty.role, str(duty)) == (role, text)


@pytest.mark.parametrize("wrong", [{"at_share": 1.1}, {"lam": -0.1}, {"at_share": float("nan")}])
def test_a_share_is_a_part_of_a_whole(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="expected a number from 0 to 1"):
        Duty(**wrong)


def test_who_trains_adversarially_does_not_calibrate() -> None:
    with pytest.raises(ConfigError, match="expected one of them"):
        Duty(at_share=0.5, lam=0.5)


def test_what_clients_minimise() -> None:
    method = fedrbn(ATTACK)
    whole = Adversarial(ATTACK)
    assert method.objective(Role.AT.duty, calibrate=False) == whole
    assert method.objective(HALF, calibrate=True) == Fractional(whole, 0.5)
    assert method.objective(Duty(lam=0.25), calibrate=True) == Calibrated(0.25)
    assert method.objective(Duty(lam=0.25), calibrate=False) == Standard(), "nobody has given it a BN_a yet"
    assert method.objective(PLAIN, calibrate=True) == Calibrated(0.0)
    ours = fedrbn_plus(ATTACK)
    assert ours.calibration is not None
    assert ours.objective(Duty(lam=1.0), calibrate=True) == replace(ours.calibration, lam=1.0)


@pytest.mark.parametrize(
    ("method", "duty", "reason"),
    [
        (fatavg(ATTACK), Duty(lam=0.5), "has no calibration"),
        (fatavg_free(ATTACK), HALF, "train all batches in the same way"),
        (replace(fedrbn(ATTACK), at=Fractional(Adversarial(ATTACK), 0.5)), HALF, "Leave method.at_share out"),
    ],
    ids=["lam", "free", "share"],
)
def test_a_method_refuses_what_it_cannot_do(method: Any, duty: Duty, reason: str) -> None:
    who = list(clients((Role.AT, 8), (Role.ST, 8)).values())
    todo = plan(method, method.network(network()), who)
    with pytest.raises(ConfigError, match=rf"got the duty .* for client 'c1'; .*{reason}.*federation\.duties"):
        replace(todo, members=(todo.members[0], replace(todo.members[1], duty=duty)))
    replace(todo, members=(todo.members[0], replace(todo.members[1], duty=PLAIN)))


def with_duties(*duties: Duty) -> Plan:
    method = fedrbn(ATTACK)
    who = list(clients(*((duty.role, 8) for duty in duties)).values())
    todo = plan(method, method.network(network()), who)
    return replace(todo, members=tuple(replace(m, duty=duty) for m, duty in zip(todo.members, duties, strict=True)))


def answering(todo: Plan, noised: dict[str, float], batches: dict[str, int]) -> Any:
    """Clients whose BN_c is the same, whose BN_a has this mean, and has seen so many adversarial batches."""
    (clean,) = [layer for layer in todo.names.batch_norms if layer.branch is Branch.CLEAN]
    (bad,) = [layer for layer in todo.names.batch_norms if layer.branch is Branch.NOISED]

    def execute(round_: Round, jobs: Iterable[Job]) -> Iterator[Result]:
        for job in jobs:
            assert isinstance(job, Train)
            own = dict(job.personal) | {clean.mean: torch.ones(3)}
            if job.role is Role.AT:
                own |= {bad.mean: torch.full((3,), noised[job.client]), bad.count: torch.tensor(batches[job.client])}
            else:
                own = {name: tensor for name, tensor in own.items() if name not in todo.names.noised}
            shared = {
                name: t for name, t in round_.shared.items() if job.role is Role.AT or name not in todo.names.noised
            }
            yield Upload(job.client, round_.number, shared, own, 8, {"loss": 1.0})

    return execute


def test_the_weights_of_eq_3_come_from_bn_c_alone() -> None:
    """All BN_c are the same, so Eq. 4 gives each donor α = softmax of equal similarities: ½ for two, whatever share of
    their batches is adversarial. BN_a of the receiver: ½ · 2 + ½ · 6 = 4, and not 0.91 · 2 + 0.09 · 6 by shares.
    """
    todo = with_duties(Role.AT.duty, TENTH, Role.ST.duty, Duty(lam=1.0))
    start = initial_state(todo.method.network(network()), todo)
    state, _ = play_round(start, todo, answering(todo, {"c0": 2.0, "c1": 6.0}, {"c0": 1, "c1": 1}))
    givers, weights = donor_weights(state, todo, ["c2", "c3"])
    assert givers == ["c0", "c1"]
    torch.testing.assert_close(weights, torch.full((2, 2), 0.5, dtype=weights.dtype))
    (bad,) = [layer for layer in todo.names.batch_norms if layer.branch is Branch.NOISED]
    for receiver in ("c2", "c3"):
        torch.testing.assert_close(state.personal[receiver][bad.mean], torch.full((3,), 4.0))
        torch.testing.assert_close(propagated(state, todo, [receiver])[receiver][bad.mean], torch.full((3,), 4.0))


def test_a_share_without_an_adversarial_batch_yet_donates_nothing_and_predicts_with_bn_c() -> None:
    """c1 has drawn no adversarial batch in its first round: its BN_a is the initial one, and all of it is c0's."""
    todo = with_duties(Role.AT.duty, TENTH, Role.ST.duty)
    start = initial_state(todo.method.network(network()), todo)
    state, _ = play_round(start, todo, answering(todo, {"c0": 2.0, "c1": 0.0}, {"c0": 1, "c1": 0}))
    assert donors(state, todo) == ["c0"]
    (bad,) = [layer for layer in todo.names.batch_norms if layer.branch is Branch.NOISED]
    torch.testing.assert_close(state.personal["c2"][bad.mean], torch.full((3,), 2.0))
    assert [predicting_branch(todo, state, m) for m in todo.members] == [Branch.NOISED, Branch.CLEAN, Branch.NOISED]


PLANNED: dict[str, Any] = {
    "deadline": 2.0,
    "clients": {
        "plain-0": {"at_share": 1.0, "speed": [1e9, 1e9, 1e9]},
        "plain-1": {"at_share": 0.5, "speed": [1e9, 1e9, 1e9]},
        "pen-0": {"lam": 1.0, "speed": [1e9, 1e9, 1e9]},
        "pen-1": {"lam": 0.0, "speed": [1e9, 1e9, 1e9]},
    },
}
TINY: dict[str, dict[str, Any]] = {
    "data": {"domains": ["plain", "pen"]},
    "federation": {"users_per_domain": 2, "fraction": 0.03, "test_samples": 8, "duties": PLANNED},
    "model": {"width": 1 / 16},
    "attack": {"steps": 2},
    "run": {"workers": 1},
}


def changed(**clients: Any) -> dict[str, Any]:
    kept = {name: own for name, own in {**PLANNED["clients"], **clients}.items() if own is not None}
    return {**TINY, "federation": {**TINY["federation"], "duties": {"clients": kept}}}


def test_cost_counts_the_plan() -> None:
    """In the paper's count AT with two steps is 9 forward passes and ST 3: half of each 6, λ = 1 is 4, plain ST 3."""
    built = assemble(make(TINY))
    assert [m.duty for m in built.plan.members] == [Role.AT.duty, HALF, Duty(lam=1.0), PLAIN]
    paper = paper_macs(built)
    forward = paper[PLAIN] / 3
    assert paper == {Role.AT.duty: 9 * forward, HALF: 6 * forward, Duty(lam=1.0): 4 * forward, PLAIN: 3 * forward}
    actual = actual_macs(built)
    assert actual[HALF] == pytest.approx((actual[Role.AT.duty] + actual[PLAIN]) / 2, abs=1)
    images = {m.samples for m in built.plan.members}
    assert images == {15}, "which the paper counts as one batch of 32"
    found = cost_of(built)
    assert found["macs_per_epoch"]["paper"] == (9 + 6 + 4 + 3) * forward * 32
    assert list(found["macs_per_image"]) == ["AT", "AT on 50 %", "plain ST", "PNC, λ = 1"]
    assert found["bytes"]["client"]["AT on 50 %"] == found["bytes"]["client"]["AT"], "it uploads its BN_a"


def test_the_content_of_the_file_is_the_runs() -> None:
    """Other duties, another key; the run's own config holds them whatever becomes of the file."""
    one, other = make(TINY), make(changed(**{"pen-1": {"lam": 0.5}}))
    assert one.key() != other.key()
    assert from_toml(one.to_toml()) == one


def test_the_papers_roles_are_two_duties() -> None:
    roles = changed(**{"plain-1": {"at_share": 1.0}, "pen-0": {}, "pen-1": {}})
    usual = {**TINY, "federation": {"users_per_domain": 2, "fraction": 0.03, "test_samples": 8, "at": ["plain"]}}
    assert assemble(make(roles)).plan.members == assemble(make(usual)).plan.members


@pytest.mark.parametrize(
    ("clients", "reason"),
    [
        ({"pen-2": {}}, r"got 'pen-2' in federation\.duties; expected a user"),
        ({"pen-1": None}, r"got federation\.duties without user 'pen-1'; expected a duty for each of the 4"),
    ],
)
def test_a_plan_is_for_all_clients_and_for_no_others(clients: dict[str, Any], reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        assemble(make(changed(**clients)))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[clients.a]\nat_share = 2", "at_share"),
        ("[clients.a]\nat_share = 0.5\nlam = 1", "expected one of them"),
        ("[clients.a]\nshare = 0.5", "at_share"),
        ("deadline = 3", "clients"),
        ("nonsense", "duties.toml|TOML"),
    ],
)
def test_mistakes_in_a_file_of_duties(text: str, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "duties.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=reason):
        make({"federation": {"duties": str(path)}})
    with pytest.raises(ConfigError, match=r"gone\.toml"):
        make({"federation": {"duties": str(tmp_path / "gone.toml")}})


def test_members_are_values() -> None:
    assert Member("a", "d", HALF, 3).role is Role.AT
