"""Simulated attackers send what they are said to send, and only they do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

from federated.tiny import clients, network, plan
from fedrbn.attacks import PGD
from fedrbn.config import ConfigError, make
from fedrbn.federated.aggregation.layout import layout
from fedrbn.federated.executors.host import ClientHost
from fedrbn.federated.executors.malice import (
    Honest,
    Malice,
    ScaledNoise,
    Shift,
    SignFlip,
    Swap,
    Variance,
    attackers,
    from_config,
)
from fedrbn.federated.executors.serial import serial
from fedrbn.federated.methods import fatavg, fedrbn
from fedrbn.federated.protocol import Job, Result, Round, Train, Upload
from fedrbn.federated.server import federate, initial_state
from fedrbn.nets.state import BNNames
from fedrbn.types import Branch, Member, Role

ROUND = Round(0, 1, fedrbn(PGD()), {"w": torch.tensor([1.0, 2.0])}, 0.1, 32, 1)
UPLOAD = Upload(
    "m",
    0,
    {"w": torch.tensor([1.5, 4.0])},
    {
        "a.clean.mean": torch.tensor([0.5, 0.5]),
        "a.clean.var": torch.tensor([3.0, 3.0]),
        "a.clean.weight": torch.tensor([1.0, -1.0]),
        "a.noised.mean": torch.tensor([1.0, 1.0]),
        "a.noised.var": torch.tensor([4.0, 9.0]),
    },
    10,
    {"loss": 1.0},
)
LAYERS = tuple(
    BNNames(
        "a",
        branch,
        f"a.{branch.value}.mean",
        f"a.{branch.value}.var",
        f"a.{branch.value}.count",
        ("a.clean.weight",) if branch is Branch.CLEAN else (),
    )
    for branch in Branch
)


def random() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_sign_flip_goes_the_other_way() -> None:
    # the update is (0.5, 2): 1 − 3 · 0.5 and 2 − 3 · 2
    assert SignFlip(3.0)(ROUND, UPLOAD, random()).shared["w"].tolist() == [-0.5, -4.0]


def test_noise_has_the_length_of_so_many_updates() -> None:
    moved = ScaledNoise(2.0)(ROUND, UPLOAD, random()).shared["w"] - ROUND.shared["w"]
    assert moved.norm().item() == pytest.approx(2 * (0.25 + 4) ** 0.5)


def test_donors_lie_about_bn_a_alone() -> None:
    grown = Variance(LAYERS, 100.0)(ROUND, UPLOAD, random())
    assert grown.personal["a.noised.var"].tolist() == [400.0, 900.0]
    # σ = 2, 3; the second channel has w < 0, so its mean goes down: 1 + 2 · 2 and 1 − 2 · 3
    shifted = Shift(LAYERS, 2.0)(ROUND, UPLOAD, random())
    assert shifted.personal["a.noised.mean"].tolist() == [5.0, -5.0]
    swapped = Swap(LAYERS)(ROUND, UPLOAD, random())
    assert swapped.personal["a.noised.mean"].tolist() == [0.5, 0.5]
    assert swapped.personal["a.noised.var"].tolist() == [3.0, 3.0]
    for told in (grown, shifted, swapped):
        assert told.shared is UPLOAD.shared
        assert all(told.personal[name] is value for name, value in UPLOAD.personal.items() if ".clean." in name)


def test_only_attackers_are_tampered_with() -> None:
    def execute(round_: Round, jobs: Iterable[Job]) -> Iterator[Result]:
        for job in jobs:
            yield replace(UPLOAD, client=job.client)

    jobs = [Train(name, Role.AT.duty, {}, False) for name in ("m", "honest")]
    with Malice(frozenset({"m"}), SignFlip(1.0)).among(nullcontext(execute)) as tampered:
        bad, good = tampered(ROUND, jobs)
    assert isinstance(bad, Upload)
    assert isinstance(good, Upload)
    assert (bad.shared["w"].tolist(), good.shared["w"].tolist()) == ([0.5, 0.0], [1.5, 4.0])


def test_flipped_labels_are_in_the_attackers_training_data_only() -> None:
    members = clients((Role.AT, 6), (Role.ST, 6))
    flipped = Malice(frozenset({"c1"}), Honest(), flips_labels=True).data(members, 2)
    assert flipped["c0"] is members["c0"]
    assert torch.equal(flipped["c1"].train.labels, 1 - members["c1"].train.labels)
    assert flipped["c1"].test is members["c1"].test


MEMBERS = tuple(Member(f"c{i}", "d", (Role.AT if i % 2 else Role.ST).duty, 10) for i in range(20))


def test_a_share_of_those_who_can_attack() -> None:
    def who(seed: int = 1, **malice: object) -> frozenset[str]:
        return attackers(make({"malice": malice, "run": {"seed": seed}}), MEMBERS)

    assert who() == frozenset()
    assert len(who(attack="sign-flip")) == 4
    assert len(who(attack="sign-flip", share=0.5)) == 10
    donors = who(attack="bn-shift", share=0.3)
    assert len(donors) == 3
    assert all(member.role is Role.AT for member in MEMBERS if member.id in donors)
    assert who(attack="sign-flip") == who(attack="sign-flip")
    assert who(seed=1, attack="sign-flip") != who(seed=2, attack="sign-flip")


def test_a_method_without_bn_a_has_nothing_for_a_donor_to_lie_about() -> None:
    net = fatavg(PGD()).network(network())
    experiment = make({"malice": {"attack": "bn-swap"}, "method": {"name": "fatavg"}})
    with pytest.raises(ConfigError, match="no BN_a to falsify"):
        from_config(experiment, MEMBERS, layout(net, fatavg(PGD()).local).batch_norms)


@pytest.mark.parametrize("attack", ["sign-flip", "noise", "label-flip", "bn-variance", "bn-shift", "bn-swap"])
def test_every_attack_runs_in_a_federation(attack: str) -> None:
    method = fedrbn(PGD(steps=1))
    who = clients((Role.AT, 8), (Role.AT, 8), (Role.ST, 8))
    net = method.network(network())
    todo = plan(method, net, list(who.values()), rounds=1)
    malice = from_config(make({"malice": {"attack": attack, "share": 0.5}}), todo.members, todo.names.batch_norms)
    assert malice is not None
    site = ClientHost(malice.data(who, 2), net)
    start = initial_state(net, todo)
    with malice.among(nullcontext(serial(site))) as execute:
        ((attacked, _),) = federate(start, todo, execute)
    ((honest, _),) = federate(start, todo, serial(ClientHost(who, net)))
    changed = [
        *(not torch.equal(value, honest.shared[name]) for name, value in attacked.shared.items()),
        *(
            not torch.equal(value, honest.personal["c2"][name])
            for name, value in attacked.personal["c2"].items()
            if "noised" in name
        ),
    ]
    assert any(changed), "the receiver's BN_a or the shared weights are others"
