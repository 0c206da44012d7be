"""Duties over Flower's messages: the same run as embedded, and a duty for each node by what it can afford."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from fedrbn.config import ConfigError
from fedrbn.fleet.probe import workload
from fedrbn.fleet.replanning import recorded_duties
from fedrbn.flower.client_app import app
from fedrbn.flower.log import events
from fedrbn.runs import train
from fedrbn.runs.directory import RunDirectory
from fedrbn.runs.records import rounds
from fedrbn.types import Duty, Role

from .in_process import InProcessGrid
from .small import experiment, last, served

DUTIES = {
    "plain-0": {"at_share": 1.0},
    "plain-1": {"at_share": 0.5},
    "pen-0": {"lam": 1.0},
    "pen-1": {"lam": 0.0},
}
SHORT = {"rounds": 2, "validate_every": 2}


def test_a_plan_gives_the_weights_of_the_embedded_run(tmp_path: Path) -> None:
    chosen = experiment(federation={"duties": {"clients": DUTIES}}, train=SHORT)
    train.run(chosen, tmp_path / "embedded")
    record = served(tmp_path, "flower", chosen)
    assert {client: own.get("duty") for client, own in record["users"].items()} == {
        "plain-0": None, "plain-1": "AT on 50 %", "pen-0": "PNC, λ = 1", "pen-1": "plain ST",
    }  # fmt: skip
    here, there = last(tmp_path / "embedded"), last(tmp_path / "flower")
    assert all(torch.equal(here.shared[name], there.shared[name]) for name in here.shared)
    for client, own in here.personal.items():
        assert all(torch.equal(own[name], there.personal[client][name]) for name in own)


def test_replanning_between_rounds_is_that_of_the_embedded_run(tmp_path: Path) -> None:
    """The plan claims 10¹⁵ MACs per second and a deadline of a microsecond, so every measured time is far too long.

    After the second round nobody can afford more than plain ST, wherever the clients run: the third is the same.
    """
    fast = {client: {**own, "speed": [1e15, 1e15, 1e15]} for client, own in DUTIES.items()}
    planned = {"duties": {"clients": fast, "deadline": 1e-6}, "replan": 2}
    chosen = experiment(federation=planned, train={"rounds": 3, "validate_every": 3})
    train.run(chosen, tmp_path / "embedded")
    served(tmp_path, "flower", chosen)
    told = [recorded_duties(record) for record in rounds(RunDirectory.open(tmp_path / "flower"))]
    assert told[1]["plain-0"] == Role.AT.duty
    assert told[2] == dict.fromkeys(DUTIES, Duty(lam=0.0))
    here, there = last(tmp_path / "embedded"), last(tmp_path / "flower")
    assert all(torch.equal(here.shared[name], there.shared[name]) for name in here.shared)


def test_a_node_without_a_planned_duty_is_refused(tmp_path: Path) -> None:
    three = {client: own for client, own in DUTIES.items() if client != "pen-1"}
    with pytest.raises(ConfigError, match="got 3 nodes that agree"):
        served(tmp_path, "run", experiment(federation={"duties": {"clients": three}}, train=SHORT), wait=0.05)
    (refused,) = events(tmp_path / "run/events.jsonl", "refused")[:1]
    assert "got client 'pen-1' at the node; expected one of the 3 in federation.duties" in refused["reason"]


def test_nodes_get_the_duty_that_they_can_afford(tmp_path: Path) -> None:
    """A speed at which AT on all 15 images takes twice the deadline of 60 s leaves a share; the slowest does plain ST.

    AT with two steps is 2 + 2·2 + 3·2 = 12 forward passes and ST 3: AT in 120 s is ST in 30, so s = (60 − 30) / 90,
    of which the largest multiple of 5 % is 30 %.
    """
    macs = workload(experiment(), 10, (3, 28, 28)).macs
    budgets: dict[int, Mapping[str, Any]] = {
        40: {"partition-id": 0, "role": "ST"},
        10: {"partition-id": 1, "macs-per-second": 1e12},
        30: {"partition-id": 2, "macs-per-second": 12 * 15 * macs / 120},
        20: {"partition-id": 3, "macs-per-second": 1.0},
    }
    chosen = experiment(train={"rounds": 1, "validate_every": 1}, faults={"deadline_seconds": 60})
    served(tmp_path, "run", chosen, InProcessGrid(app, budgets), roles="budget")
    members, _, _ = RunDirectory.open(tmp_path / "run").description()
    assert {member.id: member.duty for member in members} == {
        "plain-0": Role.ST.duty,
        "plain-1": Role.AT.duty,
        "pen-0": Duty(at_share=0.3),
        "pen-1": Duty(lam=0.0),
    }
    joined = {event["client"]: event["duty"] for event in events(tmp_path / "run/events.jsonl", "joined")}
    assert joined["pen-0"] == "AT on 30 %"
