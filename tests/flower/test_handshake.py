"""Who agrees, who is refused, who is AT; who is there, who waits, who comes back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from flwr.app import RecordDict

from fedrbn.assembly import assemble
from fedrbn.flower.handshake import (
    Agreement,
    Budget,
    Introduction,
    afforded_roles,
    agreement,
    configured_roles,
    wrong_network,
)
from fedrbn.flower.log import EventLog, events
from fedrbn.flower.roster import Guest, Roster
from fedrbn.planner import Duty, Workload
from fedrbn.types import Role

from .small import experiment

BASE = Introduction(
    version="1.0",
    client="pen-0",
    partition=2,
    domain="pen",
    label="Pen",
    classes=("a", "b"),
    image_shape=(3, 28, 28),
    samples=20,
    validation=5,
    test="0" * 64,
    fingerprint="f" * 64,
    budget=Budget(),
)


def node(client: str, **changes: Any) -> Introduction:
    return BASE.model_copy(update={"client": client, "domain": client.rpartition("-")[0], **changes})


def test_most_nodes_decide_on_the_classes_unless_they_are_given() -> None:
    nodes = [node("x-0", classes=("b", "a")), node("x-1"), node("x-2")]
    assert agreement("1.0", "", nodes).classes == ("a", "b"), "two of three"
    assert agreement("1.0", "cat, dog", nodes).classes == ("cat", "dog")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"version": "1.1"}, "got fedrbn 1.1 at the node; expected 1.0"),
        ({"classes": ("b", "a")}, "got classes b, a at the node; expected a, b"),
        ({"image_shape": (1, 28, 28)}, r"got images of shape \(1, 28, 28\)"),
    ],
)
def test_objections_say_what_was_got_and_what_helps(changes: dict[str, Any], reason: str | None) -> None:
    found = Agreement(version="1.0", classes=("a", "b"), image_shape=(3, 28, 28)).objection(node("pen-0", **changes))
    if reason is None:
        assert found is None
    else:
        with pytest.raises(AssertionError, match=reason):
            raise AssertionError(found)


def test_another_network_is_refused() -> None:
    assert wrong_network(BASE, "f" * 64) is None
    assert "expected eeeeeeeeeeee" in str(wrong_network(BASE, "e" * 64))


@pytest.mark.parametrize(
    "at",
    [0.5, 1.0, 0.0, ["plain"], ["pen-1", "plain-0"], {"ratio": 0.5, "domains": 1}, {"ratio": 1, "domains": ["pen"]}],
)
def test_configured_roles_are_those_of_the_embedded_run_whoever_has_come(at: Any) -> None:
    chosen = experiment(federation={"at": at})
    embedded = {member.id: member.role for member in assemble(chosen).plan.members}
    nodes = {client: node(client, partition=number) for number, client in enumerate(embedded)}
    assert configured_roles(nodes, chosen) == embedded
    late = {client: told for client, told in nodes.items() if client != "plain-0"}
    assert configured_roles(late, chosen) == {client: embedded[client] for client in late}, "the first is not there yet"


def test_afforded_roles() -> None:
    """AT with 7 steps costs 2 + 2·2 + 3·7 = 27 forward passes of 10⁶ MACs an image: 5.4·10⁸ for 20; there is 1 s."""
    workload = Workload(
        macs=10**6,
        weight_bytes=0,
        activation_bytes=0,
        download_bytes=0,
        upload_bytes={Duty.AT: 0, Duty.ST: 0},
        batch_size=20,
        local_epochs=1,
        attack_steps=7,
        lam=0.5,
    )

    def budget(macs: float) -> Budget:
        return Budget(forward=macs, backward=macs, attack=macs)

    nodes = {
        "says-at": node("says-at", budget=Budget(role=Role.AT)),
        "says-st": node("says-st", budget=Budget(role=Role.ST, forward=1e12, backward=1e12, attack=1e12)),
        "fast": node("fast", budget=budget(5.41e8)),
        "slow": node("slow", budget=budget(5.39e8)),
        "silent": node("silent"),
    }
    assert afforded_roles(nodes, workload, deadline=1.0) == {
        "says-at": Role.AT,
        "says-st": Role.ST,
        "fast": Role.AT,
        "slow": Role.ST,
        "silent": Role.ST,
    }


def test_a_second_node_of_a_client_waits_until_the_first_has_left(tmp_path: Path) -> None:
    """As when a node is started anew before the server has missed it, and has got another node id."""
    log = EventLog(tmp_path / "events.jsonl", echo=False)
    roster = Roster((), lambda nodes: dict.fromkeys(nodes, Role.ST), lambda told: None, log)
    first, second = (Guest(number, node("pen-0"), RecordDict()) for number in (1, 2))
    roster.update({1, 2}, [first])
    roster.update({1, 2}, [second])
    roster.update({1, 2}, [])
    assert roster.address("pen-0") == (1, roster.members["pen-0"])
    assert len(events(log.path, "refused")) == 1, "said once"
    roster.update({2}, [])
    assert roster.address("pen-0") == (2, roster.members["pen-0"])
    assert [event["again"] for event in events(log.path, "joined")] == [False, True]
    roster.update(set(), [])
    assert roster.address("pen-0") is None


def test_a_client_keeps_its_role_and_place(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl", echo=False)
    decided = {"pen-0": Role.AT, "pen-1": Role.ST, "pen-2": Role.ST}
    roster = Roster((), lambda nodes: decided, lambda told: None, log)
    roster.update({1, 2}, [Guest(1, node("pen-0"), RecordDict()), Guest(2, node("pen-1"), RecordDict())])
    decided |= {"pen-0": Role.ST}
    roster.update({2, 3}, [Guest(3, node("pen-2"), RecordDict())])
    roster.update({2, 3, 4}, [Guest(4, node("pen-0", samples=30), RecordDict())])
    assert [(m.id, m.role, m.samples) for m in roster.members.values()] == [
        ("pen-0", Role.AT, 30),
        ("pen-1", Role.ST, 20),
        ("pen-2", Role.ST, 20),
    ]
