"""A deployment of four tiny clients in one process: two domains of two users, the first of each does AT."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.clientapp import ClientApp

from fedrbn import config
from fedrbn.config import Experiment
from fedrbn.federated.protocol import ServerState
from fedrbn.flower.client_app import app
from fedrbn.flower.serving import serve
from fedrbn.runs.directory import RunDirectory

from .in_process import InProcessGrid

SMALL: dict[str, dict[str, Any]] = {
    "data": {"domains": ["plain", "pen"]},
    "federation": {"users_per_domain": 2, "at": 0.5, "fraction": 0.03, "test_samples": 8},
    "model": {"width": 1 / 16},
    "train": {"rounds": 3, "validate_every": 3, "lr": 0.05},
    "attack": {"steps": 2},
    "run": {"workers": 1},
}
CLIENTS = ("plain-0", "plain-1", "pen-0", "pen-1")
NODES = {40: 0, 10: 1, 30: 2, 20: 3}
"""Node ids, which say nothing, and the partition of each."""


def experiment(**sections: dict[str, Any]) -> Experiment:
    """The experiment; keywords such as train={"rounds": 1} go on top."""
    settings = [(section, key, value) for section, given in sections.items() for key, value in given.items()]
    return config.make(config.with_settings(SMALL, settings))


def grid(client_app: ClientApp = app, nodes: Mapping[int, int] = NODES, **more: Any) -> InProcessGrid:
    """Nodes in this process; keywords go into every node config."""
    return InProcessGrid(client_app, {node: {"partition-id": part, **more} for node, part in nodes.items()})


def run_config(folder: Path, name: str, chosen: Experiment, **flower: Any) -> dict[str, Any]:
    """The run config for an experiment, whose settings are in a file as a deployment has them."""
    file = folder / f"{name}.toml"
    file.write_text(chosen.to_toml(), encoding="utf-8")
    given = {"config": str(file), "nodes": 4, "wait": 2.0, "poll": 0.01, **flower}
    return {"run.out": str(folder / name), **{f"flower.{key}": value for key, value in given.items()}}


def served(
    folder: Path, name: str, chosen: Experiment, on: InProcessGrid | None = None, **flower: Any
) -> dict[str, Any]:
    """Run an experiment on Flower in this process; the run is in `folder / name`."""
    return serve(on or grid(), run_config(folder, name, chosen, **flower))


def last(path: Path) -> ServerState:
    """The server's state at the end of a run."""
    checkpoint = RunDirectory.open(path).checkpoint("last")
    assert checkpoint is not None
    return checkpoint.state
