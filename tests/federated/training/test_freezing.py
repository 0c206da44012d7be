"""Which layers are the first, and that frozen ones do not move."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from federated.tiny import client, clients, network, plan, site
from fedrbn.attacks import PGD
from fedrbn.config import ConfigError, TrainConfig
from fedrbn.federated.aggregation.layout import layout
from fedrbn.federated.client import local_update
from fedrbn.federated.executors.serial import serial
from fedrbn.federated.methods import FineTuning, Method, fatavg, finetune
from fedrbn.federated.protocol import Round, ServerState, Train
from fedrbn.federated.server import Plan, federate, initial_state
from fedrbn.federated.training.freezing import first_layers
from fedrbn.nets import build
from fedrbn.nets.dual_bn import dual, single
from fedrbn.nets.state import tensors
from fedrbn.types import Role

ATTACK = PGD(steps=1)


@pytest.mark.parametrize(
    ("count", "expected"), [(0, []), (1, ["conv1", "bn1"]), (3, ["conv1", "bn1", "conv2", "bn2", "conv3", "bn3"])]
)
@pytest.mark.parametrize("convert", [single, dual])
def test_a_layer_comes_with_its_batch_norm(count: int, expected: list[str], convert) -> None:  # type: ignore[no-untyped-def]
    net = convert(build("digits", 10, 1 / 16, (3, 28, 28), seed=1))
    found = first_layers(net, count)
    assert sorted({name.split(".")[1] for name in found.parameters}) == sorted(expected)
    assert len(found.batch_norms) == count
    assert [name for name, _ in net.named_parameters() if name in found.parameters] == [
        name for name, _ in net.named_parameters() if name.split(".")[1] in expected
    ]


def test_something_must_be_left_to_train() -> None:
    net = single(network())
    assert len(first_layers(net, 1).parameters) == 4  # weight and bias of the linear layer, w and b of batch norm
    with pytest.raises(ConfigError, match=r"method.freeze = 2 for a network of 2 layers; expected at most 1"):
        first_layers(net, 2)


@pytest.mark.parametrize("freeze", [0, 1])
def test_frozen_layers_and_their_statistics_do_not_move(freeze: int) -> None:
    method = fatavg(ATTACK)
    net = method.network(network())
    names = layout(net, method.local)
    before = {name: tensor.clone() for name, tensor in tensors(net).items()}
    shared = {name: tensor for name, tensor in before.items() if name in names.shared}
    personal = {name: tensor for name, tensor in before.items() if name in names.personal}
    round_ = Round(0, 1, method, shared, lr=0.1, batch_size=4, local_epochs=1, freeze=freeze)
    upload = local_update(net, client("c", Role.ST, 8, 0), round_, Train("c", Role.ST.duty, personal, calibrate=False))
    after = upload.shared | upload.personal
    same = {name for name, tensor in before.items() if torch.equal(tensor, after[name])}
    assert same == (
        set() if freeze == 0 else {name for name in before if name.startswith(("network.1.", "network.2."))}
    )


def tuned(method: Method, roles: list[Role], **changes: object) -> Plan:
    who = clients(*((role, 8) for role in roles))
    made = plan(method, method.network(network()), list(who.values()), batch_size=4)
    return replace(made, train=TrainConfig(rounds=3, batch_size=4, lr=0.1, **changes))  # type: ignore[arg-type]


TUNING = replace(finetune(ATTACK), fine_tuning=FineTuning(iterations=5, freeze=1))


def test_fine_tuning_is_a_second_phase_of_st_users_until_the_iterations_are_used_up() -> None:
    """3 rounds of the AT users in whole epochs; then 5 iterations in rounds of 2 (8 images by 4): 2, 2, 1."""
    todo = tuned(TUNING, [Role.AT, Role.ST, Role.ST])
    assert todo.schedule.rounds == 6
    assert [[member.id for member in todo.schedule.sample(number)] for number in range(6)] == [["c0"]] * 3 + [
        ["c1", "c2"]
    ] * 3
    assert [todo.schedule.steps(number) for number in range(6)] == [None, None, None, 2, 2, 1]
    assert [todo.schedule.phase(number).freeze for number in range(7)] == [0, 0, 0, 1, 1, 1, 1]
    assert [todo.schedule.may_choose(finished) for finished in range(1, 7)] == [False, False, False, True, True, True]


def test_the_schedule_starts_anew_in_each_phase() -> None:
    """0.1 (1 + cos(π t / 3)) / 2 for t = 0, 1, 2: 0.1, 0.075, 0.025."""
    todo = tuned(TUNING, [Role.AT, Role.ST], schedule="cosine")
    assert [todo.schedule.lr(number) for number in range(6)] == pytest.approx([0.1, 0.075, 0.025] * 2)


def test_both_roles_are_needed() -> None:
    for roles, missing in (([Role.AT], "ST"), ([Role.ST], "AT")):
        with pytest.raises(ConfigError, match=f"without {missing} users"):
            tuned(TUNING, roles)


@pytest.mark.parametrize("method", [TUNING, replace(TUNING, momentum=0.5)])
def test_fine_tuning_starts_from_the_at_users_weights_and_continues_from_any_state(method: Method) -> None:
    """Momentum included, which must not carry frozen layers on into the second phase."""
    who = clients((Role.AT, 8), (Role.ST, 8), (Role.ST, 8))
    place = site(method, who)
    todo = replace(plan(method, place.net, list(who.values())), train=TrainConfig(rounds=3, batch_size=4, lr=0.1))
    states: list[ServerState] = []
    reports = []
    for state, report in federate(initial_state(place.net, todo), todo, serial(place)):
        states.append(state)
        reports.append(list(report.clients))
    assert reports == [["c0"]] * 3 + [["c1", "c2"]] * 3
    frozen, free = "network.1.weight", "network.4.weight"
    assert torch.equal(states[2].shared[frozen], states[5].shared[frozen])
    assert not torch.equal(states[0].shared[frozen], states[2].shared[frozen])
    assert not torch.equal(states[2].shared[free], states[5].shared[free])
    *_, (continued, _) = federate(states[3], todo, serial(site(method, who, seed=9)))
    assert all(torch.equal(tensor, continued.shared[name]) for name, tensor in states[5].shared.items())
