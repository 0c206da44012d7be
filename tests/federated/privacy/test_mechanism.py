"""What leaves a client with privacy: clipped, noisy, and nothing past it."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from federated.tiny import clients, network, plan
from fedrbn.attacks import PGD
from fedrbn.config import ConfigError, make
from fedrbn.federated.aggregation.layout import layout
from fedrbn.federated.aggregation.mean import Contribution
from fedrbn.federated.client import local_update
from fedrbn.federated.executors.host import ClientHost
from fedrbn.federated.executors.serial import serial
from fedrbn.federated.methods import fedrbn
from fedrbn.federated.privacy.mechanism import (
    Mechanism,
    Privacy,
    PrivateMean,
    coordinates,
    from_config,
    from_coordinates,
)
from fedrbn.federated.protocol import Round, Train, Upload
from fedrbn.federated.server import federate, initial_state, round_of
from fedrbn.nets.state import BNNames
from fedrbn.types import Branch, Role, Tensors

METHOD = fedrbn(PGD(steps=1))
HARDLY = 1e-9
"""A noise multiplier so small that its noise is nothing."""


def random() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_sensitivity_and_sigma() -> None:
    """Two vectors of length at most C = 1.5 are at most 2 C = 3 apart; z = 0.5 makes σ = 1.5."""
    mechanism = Mechanism(clip=1.5, noise=0.5)
    assert (mechanism.sensitivity, mechanism.sigma) == (3.0, 1.5)


def test_the_sensitivity_is_reached_by_opposite_vectors() -> None:
    mechanism = Mechanism(1.5, HARDLY)
    far = {"a": torch.tensor([300.0]), "b": torch.tensor([400.0])}
    one, other = (mechanism({n: s * v for n, v in far.items()}, random()) for s in (1, -1))
    apart = math.hypot(*((one[name] - other[name]).item() for name in far))
    assert apart == pytest.approx(mechanism.sensitivity, rel=1e-6)


def test_a_vector_is_clipped_as_a_whole_and_a_short_one_is_not() -> None:
    # (3, 4) has length 5: to length 1 it is (0.6, 0.8)
    found = Mechanism(1.0, HARDLY)({"a": torch.tensor([3.0]), "b": torch.tensor([4.0])}, random())
    assert (found["a"].item(), found["b"].item()) == pytest.approx((0.6, 0.8))
    short = Mechanism(10.0, HARDLY)({"a": torch.tensor([3.0]), "b": torch.tensor([0.0])}, random())
    assert (short["a"].item(), short["b"].item()) == pytest.approx((3.0, 0.0), abs=1e-6)


def test_noise_has_the_stated_deviation() -> None:
    """100,000 draws of σ = 2 · 2 · 0.5 = 2: their deviation is known to about σ/√(2n) = 0.0045."""
    drawn = Mechanism(2.0, 0.5)({"a": torch.zeros(100_000)}, random())["a"]
    assert drawn.std().item() == pytest.approx(2.0, abs=0.02)
    assert drawn.mean().item() == pytest.approx(0.0, abs=0.03)


LAYER = BNNames("a", Branch.CLEAN, "mean", "var", "count", ())


def stats(mean: float, variance: float) -> Tensors:
    return {"mean": torch.tensor([mean]), "var": torch.tensor([variance])}


def test_statistics_move_in_units_of_their_spread() -> None:
    """From (1, 4) to (5, 4 e): (5 − 1)/2 = 2 standard deviations, and 1 in the logarithm (up to ε₀ = 1e-5)."""
    moved = coordinates(stats(1.0, 4.0), stats(5.0, 4 * math.e), [LAYER])
    assert (moved["mean"].item(), moved["var"].item()) == pytest.approx((2.0, 1.0), abs=1e-5)
    back = from_coordinates(stats(1.0, 4.0), moved, [LAYER])
    assert (back["mean"].item(), back["var"].item()) == pytest.approx((5.0, 4 * math.e), rel=1e-5)


def test_a_variance_stays_positive_whatever_the_noise() -> None:
    for amount in (-1e6, 1e6):
        moved = {name: torch.tensor([amount], dtype=torch.float64) for name in ("mean", "var")}
        made = from_coordinates(stats(0.0, 1e-7), moved, [LAYER])
        assert made["var"].item() > 0
        assert math.isfinite(made["mean"].item())


def job_of(role: Role) -> tuple[ClientHost, Round, Train]:
    who = clients((role, 12))
    net = METHOD.network(network())
    todo = plan(METHOD, net, list(who.values()))
    start = initial_state(net, todo)
    return ClientHost(who, net), round_of(start, todo), Train("c0", role.duty, start.personal["c0"], calibrate=False)


def upload(role: Role, privacy: Privacy) -> tuple[Upload, Tensors]:
    """A client's upload, and what it was sent."""
    site, round_, job = job_of(role)
    made = local_update(site.net, site.clients["c0"], round_, job, None, privacy)
    return made, round_.shared | job.personal


def moved(role: Role, privacy: Privacy, *, statistics: bool) -> float:
    """How far what left the client is from what it was sent: statistics in their units, or everything else."""
    sent, known = upload(role, privacy)
    site, _, _ = job_of(role)
    layers = [bn for bn in layout(site.net, METHOD.local).batch_norms if bn.mean in sent.personal]
    if statistics:
        return math.hypot(*(v.norm().item() for v in coordinates(known, sent.personal, layers).values()))
    names = {name for layer in layers for name in layer.statistics}
    rest = {n: t for n, t in (sent.shared | sent.personal).items() if n not in names and t.is_floating_point()}
    return math.hypot(*((tensor - known[name]).norm().item() for name, tensor in rest.items()))


@pytest.mark.parametrize("role", Role)
def test_statistics_leave_clipped_and_the_rest_as_it_is(role: Role) -> None:
    private = Privacy(statistics=Mechanism(0.01, HARDLY))
    assert moved(role, Privacy(), statistics=True) > 0.1
    assert moved(role, private, statistics=True) == pytest.approx(0.01, rel=1e-3)
    assert moved(role, private, statistics=False) == moved(role, Privacy(), statistics=False)


@pytest.mark.parametrize("role", Role)
def test_updates_leave_clipped_with_the_clients_own_affine_and_statistics_as_they_are(role: Role) -> None:
    private = Privacy(update=Mechanism(0.01, HARDLY))
    assert moved(role, Privacy(), statistics=False) > 0.05
    assert moved(role, private, statistics=False) == pytest.approx(0.01, rel=1e-3)
    assert moved(role, private, statistics=True) == moved(role, Privacy(), statistics=True)


def test_every_float_that_leaves_is_covered_by_one_of_the_two() -> None:
    plain_, _ = upload(Role.AT, Privacy())
    noisy, _ = upload(Role.AT, Privacy(statistics=Mechanism(1.0, 1.0), update=Mechanism(1.0, 1.0)))
    for part in ("shared", "personal"):
        for name, tensor in getattr(noisy, part).items():
            same = getattr(plain_, part)[name] == tensor
            assert same.all() if not tensor.is_floating_point() else not same.any(), name


def test_noise_at_every_step_clips_every_step() -> None:
    """12 images in batches of 4 are 3 steps, each clipped to 0.001, and the upload to 0.001 more at most."""
    site, round_, job = job_of(Role.ST)
    round_ = replace(round_, batch_size=4)
    made = {}
    for every_step in (False, True):
        privacy = Privacy(statistics=Mechanism(0.001, HARDLY), every_step=every_step)
        made[every_step] = local_update(site.net, site.clients["c0"], round_, job, None, privacy).personal
    layers = [bn for bn in layout(site.net, METHOD.local).batch_norms if bn.branch is Branch.CLEAN]
    lengths = {
        when: math.hypot(*(v.norm().item() for v in coordinates(job.personal, sent, layers).values()))
        for when, sent in made.items()
    }
    assert lengths[False] == pytest.approx(0.001, rel=1e-3)
    assert 0.002 < lengths[True] <= 0.004


def test_the_same_seed_gives_the_same_noise_and_a_secret_one_does_not() -> None:
    private = Privacy(statistics=Mechanism(1.0, 0.1), update=Mechanism(1.0, 0.1))
    first, second = upload(Role.AT, private)[0], upload(Role.AT, private)[0]
    assert all(torch.equal(first.personal[name], second.personal[name]) for name in first.personal)
    secret = replace(private, secret=True)
    one, other = upload(Role.AT, secret)[0], upload(Role.AT, secret)[0]
    assert any(not torch.equal(one.shared[name], other.shared[name]) for name in one.shared)


def test_noise_differs_between_clients_and_rounds() -> None:
    round_ = job_of(Role.AT)[1]
    drawn = [
        torch.randn(1, generator=Privacy().random(replace(round_, number=number), client)).item()
        for number in (0, 1)
        for client in ("a", "b")
    ]
    assert len(set(drawn)) == 4


def test_clients_go_on_from_what_the_server_has() -> None:
    """The server's copy of a client's statistics is the noisy one, and so the next round's change is against that."""
    who = clients((Role.AT, 8), (Role.ST, 8))
    net = METHOD.network(network())
    todo = plan(METHOD, net, list(who.values()), rounds=3)
    clip = 0.01
    states = [
        state
        for state, _ in federate(
            initial_state(net, todo), todo, serial(ClientHost(who, net, None, Privacy(Mechanism(clip, HARDLY))))
        )
    ]
    layers = [bn for bn in todo.names.batch_norms if bn.branch is Branch.CLEAN]
    for before, after in pairwise(states):
        change = coordinates(before.personal["c1"], after.personal["c1"], layers)
        assert math.hypot(*(v.norm().item() for v in change.values())) == pytest.approx(clip, rel=1e-2)


def contributions(*values: list[float]) -> list[Contribution]:
    return [Contribution(f"c{i}", {"w": torch.tensor(value)}, 10.0**i) for i, value in enumerate(values)]


def test_the_private_mean_clips_and_counts_every_client_once() -> None:
    # from (0, 0): (3, 4) becomes (0.6, 0.8), (0, 0.5) stays; their mean is (0.3, 0.65), whatever weights they claim
    found = PrivateMean(Mechanism(1.0, HARDLY), 1)({"w": torch.zeros(2)}, contributions([3.0, 4.0], [0.0, 0.5]))
    assert found["w"].tolist() == pytest.approx([0.3, 0.65], abs=1e-6)


def test_the_private_means_noise_shrinks_with_the_number_of_clients() -> None:
    """σ = z · 2 C / n = 1 · 2 / 4 = ½; a tensor that only two of the four send makes it 2 / 2 = 1 for all."""
    before = {"w": torch.zeros(50_000), "v": torch.zeros(50_000)}
    sent = [Contribution(f"c{i}", {"w": torch.zeros(50_000)}, 1.0) for i in range(4)]
    four = PrivateMean(Mechanism(1.0, 1.0), 1)(before, sent)
    assert four["w"].std().item() == pytest.approx(0.5, abs=0.01)
    assert not four["v"].any(), "nobody sent it: it keeps its value"
    for i in range(2):
        sent[i] = Contribution(f"c{i}", {"w": torch.zeros(50_000), "v": torch.zeros(50_000)}, 1.0)
    assert PrivateMean(Mechanism(1.0, 1.0), 1)(before, sent)["w"].std().item() == pytest.approx(1.0, abs=0.02)


def test_the_private_mean_draws_anew_every_round_and_the_same_for_the_same() -> None:
    rule = PrivateMean(Mechanism(1.0, 1.0), 1)
    sent = contributions([1.0, 2.0])
    first = rule({"w": torch.zeros(2)}, sent)["w"]
    assert torch.equal(first, rule({"w": torch.zeros(2)}, sent)["w"])
    later = rule({"w": torch.full((2,), 1e-3)}, sent)["w"]
    assert (first - later).abs().max() > 0.01
    secret = PrivateMean(Mechanism(1.0, 1.0), None)
    assert not torch.equal(secret({"w": torch.zeros(2)}, sent)["w"], secret({"w": torch.zeros(2)}, sent)["w"])


def test_privacy_from_the_config() -> None:
    assert from_config(make({})) == Privacy()
    settings = {
        "statistics_noise": 0.1,
        "statistics_clip": 3.0,
        "statistics_when": "step",
        "update_noise": 0.2,
        "secret": True,
    }
    found = from_config(make({"privacy": settings}))
    assert found == Privacy(Mechanism(3.0, 0.1), every_step=True, update=Mechanism(1.0, 0.2), secret=True)
    central = from_config(make({"privacy": {"update_noise": 0.2, "update_at": "server"}}))
    assert central == Privacy(), "the noise is the server's to add"


def test_a_mechanism_without_noise_is_refused() -> None:
    with pytest.raises(ConfigError, match="expected both above 0"):
        Mechanism(1.0, 0.0)


def test_secret_noise_is_not_drawn_twice_in_a_round() -> None:
    waiting, private = {"on_too_few": "wait"}, {"update_noise": 1.0, "secret": True}
    with pytest.raises(ConfigError, match="a client that is asked again answers with new noise"):
        from_config(make({"privacy": private, "faults": waiting}))
    central = {**private, "update_at": "server"}
    assert from_config(make({"privacy": central, "faults": waiting})) == Privacy(secret=True)
