"""Who agrees, who is refused, who is AT; who is there, who waits, who comes back."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord, RecordDict
from flwr.proto.node_pb2 import NodeInfo

from fedrbn.cost.units import PLAIN
from fedrbn.errors import MessageError, StorageError
from fedrbn.federated.assemble import assemble
from fedrbn.fleet.planner import Workload
from fedrbn.flower import handshake, wire
from fedrbn.flower.client_app import app
from fedrbn.flower.handshake import (
    Agreement,
    Budget,
    Introduction,
    Response,
    afforded_duties,
    agreement,
    configured_duties,
    too_large,
    unplanned,
    wrong_network,
    wrong_part,
)
from fedrbn.flower.log import EventLog, events
from fedrbn.flower.registry import ANYBODY, Identity, Registration, Registry, identities
from fedrbn.flower.roster import Candidate, Roster
from fedrbn.types import Duty, Member, Role

from .in_process import InProcessGrid
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
    embedded = {member.id: member.duty for member in assemble(chosen).plan.members}
    nodes = {client: node(client, partition=number) for number, client in enumerate(embedded)}
    assert configured_duties(nodes, chosen) == embedded
    late = {client: told for client, told in nodes.items() if client != "plain-0"}
    assert configured_duties(late, chosen) == {client: embedded[client] for client in late}, (
        "the first is not there yet"
    )


def test_afforded_duties() -> None:
    """AT with 7 steps costs 2 + 2·2 + 3·7 = 27 forward passes of 10⁶ MACs an image: 5.4·10⁸ for 20; there is 1 s.

    ST costs 3, PNC with λ = ½ 6 and with λ = 1 4: 0.6, 1.2 and 0.8·10⁸. Half of the batches: (27 + 3) / 2 · 2·10⁷.
    """
    workload = Workload(
        macs=10**6,
        weight_bytes=0,
        activation_bytes=0,
        download_bytes=0,
        upload_bytes={Role.AT: 0, Role.ST: 0},
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
        "slower": node("slower", budget=budget(3.01e8)),
        "slowest": node("slowest", budget=budget(0.81e8)),
        "standard": node("standard", budget=budget(0.61e8)),
        "late": node("late", budget=budget(0.59e8)),
        "silent": node("silent"),
    }
    assert afforded_duties(nodes, workload, deadline=1.0) == {
        "says-at": Role.AT.duty,
        "says-st": Role.ST.duty,
        "fast": Role.AT.duty,
        "slow": Duty(at_share=0.95),
        "slower": Duty(at_share=0.5),
        "slowest": Duty(lam=1.0),
        "standard": PLAIN,
        "late": PLAIN,
        "silent": Role.ST.duty,
    }


def test_a_client_without_a_planned_duty_has_no_place() -> None:
    """What federation.duties says is what nodes do; roles follow from it."""
    planned = {"clients": {"pen-0": {"at_share": 0.5}, "pen-1": {"lam": 0.25}}}
    chosen = experiment(federation={"duties": planned})
    nodes = {client: node(client) for client in ("pen-0", "pen-1")}
    assert configured_duties(nodes, chosen) == {"pen-0": Duty(at_share=0.5), "pen-1": Duty(lam=0.25)}
    assert unplanned(nodes["pen-1"], chosen) is None
    assert "got client 'pen-2' at the node; expected one of the 2" in str(unplanned(node("pen-2"), chosen))
    assert unplanned(node("pen-2"), experiment()) is None, "without a plan"


def _registry(folder: Path) -> Registry:
    return Registry(folder / "nodes.json")


def test_a_second_node_of_a_client_waits_until_the_first_has_left(tmp_path: Path) -> None:
    """As when a node is started anew before the server has missed it, and has got another node id."""
    log = EventLog(tmp_path / "events.jsonl", echo=False)
    roster = Roster((), _registry(tmp_path), lambda nodes: dict.fromkeys(nodes, Role.ST.duty), lambda told: None, log)
    first, second = (Candidate(number, node("pen-0"), RecordDict()) for number in (1, 2))
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
    decided = {"pen-0": Role.AT.duty, "pen-1": Role.ST.duty, "pen-2": Role.ST.duty}
    roster = Roster((), _registry(tmp_path), lambda nodes: decided, lambda told: None, log)
    roster.update({1, 2}, [Candidate(1, node("pen-0"), RecordDict()), Candidate(2, node("pen-1"), RecordDict())])
    decided |= {"pen-0": Role.ST.duty}
    roster.update({2, 3}, [Candidate(3, node("pen-2"), RecordDict())])
    roster.update({2, 3, 4}, [Candidate(4, node("pen-0", samples=30), RecordDict())])
    assert [(m.id, m.role, m.samples) for m in roster.members.values()] == [
        ("pen-0", Role.AT, 20),
        ("pen-1", Role.ST, 20),
        ("pen-2", Role.ST, 20),
    ]
    (ignored,) = events(log.path, "claim ignored")
    assert ignored["client"] == "pen-0"
    assert "got 30 samples; expected 20" in ignored["reason"]
    assert roster.address("pen-0") == (4, Member("pen-0", "pen", Role.AT.duty, 30)), "what its uploads say"
    again = Roster((), _registry(tmp_path), lambda nodes: decided, lambda told: None, log)
    assert again.registry.samples() == {"pen-0": 20, "pen-1": 20, "pen-2": 20}, "also after a restart"
    known = Roster(
        [Member("pen-0", "pen", Role.AT.duty, 7)], _registry(tmp_path), lambda nodes: decided, lambda _: None, log
    )
    assert known.members["pen-0"].samples == 20, "federation.json says what it counted for"


KEYS = [Identity(key=digit * 64, name=f"node-{digit}") for digit in "0123"]


class TestOwners:
    """A client belongs to the key that it first came with, for good."""

    def roster(self, folder: Path) -> Roster:
        log = EventLog(folder / "events.jsonl", echo=False)
        return Roster((), _registry(folder), lambda nodes: dict.fromkeys(nodes, Role.ST.duty), lambda told: None, log)

    def test_another_node_cannot_take_the_place_of_a_client_that_is_away(self, tmp_path: Path) -> None:
        roster = self.roster(tmp_path)
        owner, thief = (Candidate(n, node("pen-0"), RecordDict(), KEYS[n]) for n in (1, 2))
        roster.update({1}, [owner])
        roster.update({2}, [thief])
        assert roster.address("pen-0") is None
        (refused,) = events(tmp_path / "events.jsonl", "refused")
        assert (refused["node"], refused["client"]) == ("2", "pen-0")
        assert "expected key 111111111111" in refused["reason"]
        roster.update({2, 9}, [replace(owner, node=9)])
        assert roster.address("pen-0") == (9, roster.members["pen-0"]), "the owner returns, with another node id"

    def test_nor_wait_for_it_to_leave(self, tmp_path: Path) -> None:
        roster = self.roster(tmp_path)
        roster.update({1}, [Candidate(1, node("pen-0"), RecordDict(), KEYS[1])])
        roster.update({1, 2}, [Candidate(2, node("pen-0"), RecordDict(), KEYS[2])])
        roster.update({2}, [])
        assert roster.address("pen-0") is None
        assert not roster.queue

    def test_nor_after_the_server_has_been_restarted(self, tmp_path: Path) -> None:
        self.roster(tmp_path).update({1}, [Candidate(1, node("pen-0"), RecordDict(), KEYS[1])])
        roster = self.roster(tmp_path)
        roster.update({2}, [Candidate(2, node("pen-0"), RecordDict(), KEYS[2])])
        assert roster.address("pen-0") is None
        roster.update({2, 5}, [Candidate(5, node("pen-0"), RecordDict(), KEYS[1])])
        assert roster.address("pen-0") is not None

    def test_a_key_that_the_operator_has_renewed_is_the_owners_and_the_old_one_no_longer(self, tmp_path: Path) -> None:
        renewed = Identity(key="9" * 64, name="node-1")
        roster = self.roster(tmp_path)
        roster.update({1}, [Candidate(1, node("pen-0"), RecordDict(), KEYS[1])])
        roster.update({4}, [Candidate(4, node("pen-0", samples=50), RecordDict(), renewed)])
        assert roster.address("pen-0") is not None
        assert _registry(tmp_path).entries["pen-0"] == Registration(key="9" * 64, name="node-1", samples=20)
        assert _registry(tmp_path).objection("pen-0", Identity(key="1" * 64)) is not None

    @pytest.mark.parametrize("restarted", [False, True])
    def test_a_node_cannot_be_a_second_client(self, tmp_path: Path, restarted: bool) -> None:
        """Clients that left are still asked and counted, so one node under many names would outvote the others."""
        roster = self.roster(tmp_path)
        roster.update({1}, [Candidate(1, node("pen-0"), RecordDict(), KEYS[1])])
        for number in range(5):
            roster = self.roster(tmp_path) if restarted else roster
            roster.update(set(), [])
            roster.update({1}, [Candidate(1, node(f"ghost-{number}"), RecordDict(), KEYS[1])])
        assert not [client for client in roster.members if client.startswith("ghost")]
        assert [*_registry(tmp_path).entries] == ["pen-0"]
        refused = events(tmp_path / "events.jsonl", "refused")
        assert len(refused) == 5
        assert "expected 'pen-0', with which this node first registered" in refused[0]["reason"]
        roster.update(set(), [])
        roster.update({1}, [Candidate(1, node("pen-0"), RecordDict(), KEYS[1])])
        assert roster.address("pen-0") is not None, "under its first name it returns"

    def test_nor_swap_names_with_another(self, tmp_path: Path) -> None:
        roster = self.roster(tmp_path)
        roster.update({1, 2}, [Candidate(n, node(f"pen-{n}"), RecordDict(), KEYS[n]) for n in (1, 2)])
        roster.update(set(), [])
        roster.update({1, 2}, [Candidate(n, node(f"pen-{3 - n}"), RecordDict(), KEYS[n]) for n in (1, 2)])
        assert not roster.present

    def test_without_keys_nobody_owns_a_client(self, tmp_path: Path) -> None:
        """As in a simulation, whose nodes have random ids and no keys."""
        roster = self.roster(tmp_path)
        roster.update({1}, [Candidate(1, node("pen-0"), RecordDict())])
        roster.update({2}, [Candidate(2, node("pen-0"), RecordDict())])
        assert roster.address("pen-0") == (2, roster.members["pen-0"])

    def test_a_damaged_file_is_refused(self, tmp_path: Path) -> None:
        """Otherwise whoever can damage it could take every place."""
        (tmp_path / "nodes.json").write_text('{"pen-0": {"key": 7}}')
        with pytest.raises(StorageError, match=r"got .*nodes\.json.*; expected the node of each client"):
            _registry(tmp_path)

    def test_keys_come_from_the_superlink(self) -> None:
        """A key is a PEM file; simulated nodes have random bytes in its place."""
        pem = b"-----BEGIN PUBLIC KEY-----\nMHY\n-----END PUBLIC KEY-----\n"

        class Known(InProcessGrid):
            def get_nodes(self) -> list[NodeInfo]:
                return [
                    NodeInfo(node_id=1, public_key=pem, name="clinic"),
                    NodeInfo(node_id=2, public_key=b"\x07" * 32),
                ]

        expected = Identity(key=hashlib.sha256(pem).hexdigest(), name="clinic")
        assert identities(Known(app, {})) == {1: expected, 2: ANYBODY}
        assert identities(InProcessGrid(app, {5: {}})) == {5: ANYBODY}


HUGE: list[dict[str, Any]] = [
    {"image_shape": [3, 10**6, 10**6]},
    {"image_shape": [3, 4096, 4096]},
    {"image_shape": [3, 0, 28]},
    {"image_shape": [3, -1, 28]},
    {"classes": ["x"] * (2**16 + 1)},
    {"classes": []},
    {"samples": 2**40},
    {"samples": 1},
    {"validation": -1},
    {"validation": 2**40},
    {"partition": 2**62},
    {"partition": -1},
    {"finished": 2**62},
    {"budget": {"forward": 1e300}},
    {"budget": {"memory": -1.0}},
    {"client": "x" * 101},
    {"domain": "x" * 201},
]


@pytest.mark.parametrize("change", HUGE, ids=lambda change: str(change)[:40])
def test_every_number_of_an_introduction_has_a_bound(change: dict[str, Any]) -> None:
    said = {**json.loads(BASE.model_dump_json()), **change}
    with pytest.raises(MessageError, match=next(iter(change))):
        wire.value_of(RecordDict({"x": ConfigRecord({"json": json.dumps({"content": said})})}), "x", Response)


def test_a_network_that_fits_into_no_memory_is_refused_before_it_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    """The digits network on 2048 x 2048 pixels: its first linear layer has 128·512·512 inputs and 2048 outputs."""
    chosen = experiment(model={"width": 1.0})
    monkeypatch.setattr(handshake, "available_memory", lambda: 8 * 2**30)
    assert too_large(node("pen-0"), chosen) is None
    large = str(too_large(node("pen-0", image_shape=(1, 2048, 2048)), chosen))
    assert "got images of (1, 2048, 2048)" in large
    assert "expected at most 8,589,934,592" in large
    assert "expected a shape that 'digits' accepts" in str(too_large(node("pen-0", image_shape=(3, 28, 30)), chosen)), (
        "not square"
    )


PARTS = (Member("pen-0", "pen", Role.ST.duty, 20), Member("pen-1", "pen", Role.ST.duty, 35))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"partition": 0}, None),
        ({"partition": None, "samples": 99}, None),
        ({"partition": 0, "samples": 2**33}, "got 'pen-0' of 'pen' with 8589934592 samples as partition 0"),
        ({"partition": 1}, "expected 'pen-1' of 'pen' with 35 samples"),
        ({"partition": 2}, "expected one of 2 partitions"),
        ({"partition": 0, "domain": "plain"}, "got 'pen-0' of 'plain'"),
    ],
)
def test_the_server_knows_the_parts_of_its_own_data_set(changes: dict[str, Any], reason: str | None) -> None:
    found = wrong_part(node("pen-0", **changes), PARTS)
    assert found is None if reason is None else reason in str(found)
