"""A registered node that lies about what it has does not stop the others, and does not decide for them."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Context, Message

from fedrbn.data import load
from fedrbn.data.samples import DataSet
from fedrbn.federated.aggregation.robust import bounded
from fedrbn.federated.client import steps_per_epoch
from fedrbn.flower import wire
from fedrbn.flower.claim_checks import capped_samples
from fedrbn.flower.client_app import affordable
from fedrbn.flower.deadline import DeadlineError, within
from fedrbn.flower.log import events
from fedrbn.flower.serving import serve
from fedrbn.flower.site import SiteData
from fedrbn.runs.directory import RunDirectory
from fedrbn.types import Member, Role

from .in_process import InProcessGrid
from .small import experiment, last, run_config, served
from .test_fleet import Step, order_of, tampered
from .test_messages import ROUND

ENORMOUS = 2**33
SITES = {1: "clinic", 2: "ward", 3: "liar"}
IMAGES = {"clinic": 40, "ward": 70, "liar": 40}


def images(node_config: Mapping[str, object]) -> SiteData:
    """Digits of a site of its own."""
    digits = load("digits-mini", None)
    assert isinstance(digits, DataSet)
    source = digits.only(("plain",)).domains[0]
    name = str(node_config["name"])
    train = source.train.first(IMAGES[name])
    return SiteData(name, digits.classes, train, train.first(0), source.test.first(8))


def sites(claim: int, names: Mapping[int, str] = SITES) -> InProcessGrid:
    """Sites with data of their own, of which one claims so many samples, in its uploads too."""

    def lie(message: Message, context: Context, do: Step) -> Message:
        reply = do(message, context)
        for name in ("response", "reply"):
            if context.node_config["name"] == "liar" and name in reply.content:
                said = json.loads(reply.content[name]["json"])  # type: ignore[index, arg-type]
                for content in said.values():
                    if "samples" in content:
                        content["samples"] = claim
                reply.content[name]["json"] = json.dumps(said)  # type: ignore[index]
        return reply

    config = {"data": "flower.test_liars:images"}
    return InProcessGrid(tampered(lie), {node: {**config, "name": name} for node, name in names.items()})


def test_an_upload_of_more_samples_than_the_node_came_with_is_refused(tmp_path: Path) -> None:
    """It would weigh 60 of 170 in the mean, where the node introduced itself with 40."""

    def lie(message: Message, context: Context, do: Step) -> Message:
        reply = do(message, context)
        if context.node_config["name"] == "liar" and "reply" in reply.content:
            text = str(reply.content["reply"]["json"])  # type: ignore[index]
            reply.content["reply"]["json"] = text.replace('"samples":40', '"samples":60')  # type: ignore[index]
        return reply

    config = {"data": "flower.test_liars:images"}
    nodes = InProcessGrid(tampered(lie), {node: {**config, "name": name} for node, name in SITES.items()})
    chosen = experiment(
        train={"rounds": 1, "validate_every": 1}, federation={"at": ["clinic"]}, faults={"min_clients": 1}
    )
    served(tmp_path, "run", chosen, nodes, nodes=3)
    (record,) = RunDirectory.open(tmp_path / "run").records("rounds.jsonl")
    (failure,) = record["failures"]
    assert failure["client"] == "liar"
    assert "got 60 samples; expected the 40 that the client registered with" in failure["cause"]


def members(*samples: int) -> list[Member]:
    return [Member(f"c{number}", "d", Role.ST.duty, count) for number, count in enumerate(samples)]


@pytest.mark.parametrize(
    ("claims", "expected"),
    [
        ((40, 70, ENORMOUS), [40, 70, 140]),  # the median is 70
        ((20, 30, 40, ENORMOUS), [20, 30, 40, 70]),  # (30 + 40) / 2 = 35
        ((20, 20, 40), [20, 20, 40]),  # not more than twice
        ((7,), [7]),
        ((20, ENORMOUS), [20, ENORMOUS]),  # of two nothing tells which is right
    ],
)
def test_a_claim_counts_for_at_most_twice_the_median(claims: tuple[int, ...], expected: list[int]) -> None:
    assert [member.samples for member in capped_samples(members(*claims))] == expected
    assert [member.samples for member in capped_samples(members(*claims))] == bounded(claims), "as in the robust rules"


@pytest.mark.parametrize("aggregation", ["mean", "median"])
def test_an_enormous_claim_neither_stops_the_others_nor_outweighs_them(aggregation: str, tmp_path: Path) -> None:
    """Batches of 32: 40 samples are 2 steps, 70 are 3, 140 are 5: the mean, 10 / 3, is 3. The liar weighs 140 of 250.

    Unbounded, 2³³ samples would make 89,478,487 steps, and weigh everything.
    """
    chosen = experiment(
        train={"rounds": 1, "validate_every": 1, "aggregation": aggregation}, federation={"at": ["clinic"]}
    )
    started = time.monotonic()
    served(tmp_path, "run", chosen, sites(ENORMOUS), nodes=3)
    assert time.monotonic() - started < 60
    (record,) = RunDirectory.open(tmp_path / "run").records("rounds.jsonl")
    assert {client: metrics["steps"] for client, metrics in record["clients"].items()} == {
        "clinic": 3,
        "ward": 3,
        "liar": 3,
    }
    described, _, _ = RunDirectory.open(tmp_path / "run").description()
    assert {member.id: member.samples for member in described} == {"clinic": 40, "ward": 70, "liar": 140}
    (capped,) = events(tmp_path / "run" / "events.jsonl", "claim capped")
    assert capped["client"] == "liar"
    assert f"got {ENORMOUS} samples" in capped["reason"]
    assert "counts for 140" in capped["reason"]


def test_the_mean_is_that_of_the_bounded_claims(tmp_path: Path) -> None:
    """A claim of 2³³ and one of 140, twice the median, give the same weights to the bit."""
    chosen = experiment(train={"rounds": 1, "validate_every": 1}, federation={"at": ["clinic"]})
    for name, claim in (("enormous", ENORMOUS), ("bounded", 140)):
        served(tmp_path, name, chosen, sites(claim), nodes=3)
    ours, theirs = last(tmp_path / "enormous"), last(tmp_path / "bounded")
    assert all(torch.equal(value, theirs.shared[name]) for name, value in ours.shared.items())


def test_the_first_claim_counts_also_after_a_restart(tmp_path: Path) -> None:
    chosen = experiment(train={"rounds": 1, "validate_every": 1}, federation={"at": ["clinic"]})
    config = run_config(tmp_path, "run", chosen, nodes=3)
    served(tmp_path, "run", chosen, sites(50), nodes=3)
    directory = RunDirectory.open(tmp_path / "run")
    (directory.path / "evaluations.jsonl").unlink()
    serve(sites(ENORMOUS), config)
    assert {member.id: member.samples for member in directory.description()[0]} == {
        "clinic": 40,
        "ward": 70,
        "liar": 50,
    }
    (ignored,) = events(directory.path / "events.jsonl", "claim ignored")
    assert ignored["client"] == "liar"


def test_a_part_of_the_servers_data_is_as_large_as_the_server_divides_it(tmp_path: Path) -> None:
    """Nodes with a partition-id are no exception: the server knows how many images each part has."""

    def lie(message: Message, context: Context, do: Step) -> Message:
        reply = do(message, context)
        if context.node_config["partition-id"] == 3 and "response" in reply.content:
            said = json.loads(reply.content["response"]["json"])  # type: ignore[index, arg-type]
            said["content"]["samples"] = ENORMOUS
            reply.content["response"]["json"] = json.dumps(said)  # type: ignore[index]
        return reply

    nodes = InProcessGrid(tampered(lie), {node: {"partition-id": node} for node in range(4)})
    chosen = experiment(train={"rounds": 1, "validate_every": 1})
    record = served(tmp_path, "run", chosen, nodes, nodes=3)
    assert set(record["users"]) == {"plain-0", "plain-1", "pen-0"}
    (refused,) = events(tmp_path / "run" / "events.jsonl", "refused")
    assert f"got 'pen-1' of 'pen' with {ENORMOUS} samples as partition 3; expected" in refused["reason"]


def test_a_node_takes_at_most_so_many_passes_over_its_own_data() -> None:
    """45 samples in batches of 32 are 2 steps, two local epochs 4; twenty times that is 80."""
    assert steps_per_epoch(45, 32) == 2
    round_ = replace(ROUND, local_epochs=2, steps=89_478_487)
    assert affordable(round_, 45, 20).steps == 80
    assert affordable(replace(round_, steps=79), 45, 20).steps == 79
    assert affordable(replace(round_, steps=None), 45, 20).steps is None


def test_a_node_cuts_an_order_of_too_many_steps(tmp_path: Path) -> None:
    """A server of an earlier version, or one that believes a liar: 10⁹ steps are ordered, 3 · 2 are done."""

    def order_more(message: Message, context: Context, do: Step) -> Message:
        order = order_of(message)
        if order is not None:
            more = order.model_copy(update={"round": replace(order.round, steps=10**9)})
            message.content["order"] = wire.text(more)
        return do(message, context)

    config = {"data": "flower.test_liars:images", "max-passes": 3}
    nodes = InProcessGrid(tampered(order_more), {1: {**config, "name": "clinic"}, 2: {**config, "name": "liar"}})
    chosen = experiment(train={"rounds": 1, "validate_every": 1}, federation={"at": ["clinic"]})
    served(tmp_path, "run", chosen, nodes, nodes=2)
    (record,) = RunDirectory.open(tmp_path / "run").records("rounds.jsonl")
    assert [metrics["steps"] for metrics in record["clients"].values()] == [6, 6]


@pytest.mark.parametrize(
    ("server", "faults", "expected"), [(300.0, None, 300.0), (300.0, 200.0, 200.0), (100.0, 200.0, 100.0)]
)
def test_nodes_are_told_when_the_server_gives_up(
    server: float, faults: float | None, expected: float, tmp_path: Path
) -> None:
    told: set[float | None] = set()

    def note(message: Message, context: Context, do: Step) -> Message:
        order = order_of(message)
        if order is not None:
            told.add(order.round.deadline_seconds)
        return do(message, context)

    nodes = InProcessGrid(tampered(note), {node: {"partition-id": node} for node in range(4)})
    chosen = experiment(train={"rounds": 1, "validate_every": 1}, faults={"deadline_seconds": faults})
    served(tmp_path, "run", chosen, nodes, deadline=server)
    assert told == {expected}


def test_a_node_stops_its_job_at_the_deadline(tmp_path: Path) -> None:
    """Ten million steps would take days; the job ends with an answer that says why."""

    def order_more(message: Message, context: Context, do: Step) -> Message:
        order = order_of(message)
        if order is not None and order.job.client == "ward":
            more = {"steps": 10**7, "deadline_seconds": 0.5}
            message.content["order"] = wire.text(order.model_copy(update={"round": replace(order.round, **more)}))
        return do(message, context)

    config: dict[str, Any] = {"data": "flower.test_liars:images", "max-passes": 10**9}
    nodes = InProcessGrid(tampered(order_more), {node: {**config, "name": name} for node, name in SITES.items()})
    chosen = experiment(
        train={"rounds": 1, "validate_every": 1}, federation={"at": ["clinic"]}, faults={"min_clients": 1}
    )
    served(tmp_path, "run", chosen, nodes, nodes=3)
    (record,) = RunDirectory.open(tmp_path / "run").records("rounds.jsonl")
    assert set(record["clients"]) == {"clinic", "liar"}
    (failure,) = record["failures"]
    assert failure["client"] == "ward"
    assert "DeadlineError: got a job that is not done after 0.5 s" in failure["cause"]


def test_a_network_is_not_called_after_the_deadline_and_is_again_afterwards() -> None:
    net = torch.nn.Linear(2, 2)
    image = torch.ones(1, 2)
    with within(0.01):
        time.sleep(0.02)
        with pytest.raises(DeadlineError, match=r"got a job that is not done after 0\.01 s"):
            net(image)
    with within(None), within(60):
        net(image)
    net(image)
