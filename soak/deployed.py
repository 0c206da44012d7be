"""Faults of a deployment: a SuperLink and SuperNodes as processes, killed during a Flower run.

The server waits for all clients (`faults.min_clients = 1.0`, `on_too_few = "wait"`), so every client takes part in
every round, no matter what is killed and restarted. A client that was asked again comes last in its round's sum, which
rounds differently. So the final weights equal, bit by bit, those of an embedded run with the recorded order, and those
of an undisturbed run up to rounding.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fedrbn
from fedrbn import config
from fedrbn.deploy.fleet import RunningFleet, fleet, free_ports, local_plan
from fedrbn.deploy.site import SUPERLINK, Node, create
from fedrbn.federated.protocol import ServerState
from fedrbn.flower.log import events
from fedrbn.runs.directory import RunDirectory
from soak.replay import ensure_explained
from soak.setting import LostError, Row

NODES = tuple(f"node-{i}" for i in range(4))
THIEF = "thief"
"""A registered node that claims to be the client of the first node."""
SETTINGS: dict[str, dict[str, Any]] = {
    "data": {"domains": ("plain", "pen", "texture", "street")},
    "federation": {"users_per_domain": 1, "at": ["plain-0"], "fraction": 0.02, "validation": 0.0, "test_samples": 8},
    "model": {"width": 1 / 16},
    "train": {"rounds": 8, "lr": 0.05},
    "attack": {"steps": 2},
    "run": {"workers": 1},
    "faults": {"min_clients": 1.0, "on_too_few": "wait", "wait_seconds": 1.0},
}
DEADLINE = 30.0
"""Seconds until the server gives up on a node; a job takes less than one."""
PATIENCE = 900.0
ROUNDING = 1e-3
"""How much 8 rounds may amplify the rounding of another order of the sum; the replay must agree bit by bit."""


def rows(folder: Path, kills: int, random: np.random.Generator) -> list[Row]:
    """Kill `kills` nodes one after another, then the SuperLink; each is restarted."""
    experiment = config.make(SETTINGS)
    fedrbn.run(experiment, folder / "embedded")
    plan, (port,) = local_plan(experiment, len(NODES)), free_ports(1)
    site = create(folder / "site", replace(plan, nodes=(*plan.nodes, Node(THIEF, partition=0, port=port))))
    run = site.server / "soak"
    with fleet(site, folder / "logs") as deployed:
        deployed.start_superlink()
        deployed.register()
        for name in NODES:
            deployed.start_node(name)
        deployed.submit_experiment("soak", experiment, deadline=DEADLINE, nodes=len(NODES))
        for number in range(kills):
            _until(lambda after=number + 1: len(RunDirectory(run).records("rounds.jsonl")) >= after)
            _kill_node(deployed, str(random.choice(NODES)), run)
        _until(lambda: len(RunDirectory(run).records("rounds.jsonl")) > kills)
        _steal_place(deployed, run)
        deployed.kill(SUPERLINK)
        deployed.start_superlink()
        again = deployed.submit_experiment("soak", experiment, deadline=DEADLINE, nodes=len(NODES))
        status = deployed.wait(again, PATIENCE)
    if status != "finished:completed":
        raise LostError(f"got a deployed run that ended as {status}; expected it to be completed.")
    answers = ensure_explained(run, experiment)
    if answers != len(NODES) * experiment.train.rounds:
        raise LostError(f"got {answers} answers; expected one of each of {len(NODES)} clients in every round.")
    _ensure_close(_last(run), _last(folder / "embedded"))
    same = "the run waits for every client and ends with the weights of an embedded run, bit by bit"
    return [
        Row("a SuperNode killed (SIGKILL) in a deployed run and restarted", kills, same),
        Row("the SuperLink killed (SIGKILL) in a deployed run, restarted, and the run submitted again", 1, same),
        Row("a registered node that claims the place of a client whose node was killed", 1, f"refused, and {same}"),
    ]


def _kill_node(deployed: RunningFleet, name: str, run: Path) -> None:
    """Kill a node, wait until the server has noticed, and restart it."""
    before = _missed(run)
    deployed.kill(name)
    _until(lambda: _missed(run) > before)
    deployed.revive_node(name)


def _steal_place(deployed: RunningFleet, run: Path) -> None:
    """Kill a node and let another one, with a different key, claim its client; then the owner returns."""
    before, victim = _missed(run), NODES[0]
    deployed.kill(victim)
    _until(lambda: _missed(run) > before)
    deployed.start_node(THIEF)
    _until(lambda: any("expected key" in event["reason"] for event in events(run / "events.jsonl", "refused")))
    deployed.stop(THIEF)
    deployed.revive_node(victim)


def _missed(run: Path) -> int:
    """How often a client has failed in training so far."""
    return sum(len(event["failed"]) for event in events(run / "events.jsonl", "train"))


def _last(path: Path) -> ServerState:
    checkpoint = RunDirectory.open(path).checkpoint("last")
    if checkpoint is None:
        raise LostError(f"got no checkpoint in {path}; expected the last one.")
    return checkpoint.state


def _ensure_close(ours: ServerState, theirs: ServerState) -> None:
    if ours.round != theirs.round:
        raise LostError(f"got {ours.round} rounds of the deployed run; expected {theirs.round}.")
    torch.testing.assert_close(ours.shared, theirs.shared, rtol=ROUNDING, atol=ROUNDING)
    torch.testing.assert_close(ours.personal, theirs.personal, rtol=ROUNDING, atol=ROUNDING)


def _until(condition: Callable[[], bool]) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise LostError(f"got nothing for {PATIENCE:g} s; expected the deployed run to continue.")
        time.sleep(0.2)
