"""A run on Flower: wait for the nodes, then the same rounds, checkpoints and records as an embedded run.

Restarted with the same run directory, a run continues from its last checkpoint, no matter which process was killed: the
server's program, the SuperLink, or nodes.
"""

from __future__ import annotations

import json
import secrets
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from flwr.serverapp import Grid

from fedrbn.config import Experiment
from fedrbn.errors import ConfigError, StorageError
from fedrbn.federated.privacy.mechanism import from_config as privacy_of
from fedrbn.files import write_atomically
from fedrbn.flower import wire
from fedrbn.flower.deployment import RemoteFederation, Terms, described
from fedrbn.flower.grid_execute import grid_execute
from fedrbn.flower.handshake import Agreement, Introduction, agreement, too_large
from fedrbn.flower.instructions import setup_for
from fedrbn.flower.log import EventLog, RoundLog
from fedrbn.flower.roster import Candidate, NodeDiscovery
from fedrbn.flower.settings import FlowerConfig, Values, experiment_of
from fedrbn.runs.directory import RunDirectory
from fedrbn.runs.recovery import recover
from fedrbn.runs.round_loop import train_and_evaluate
from fedrbn.runs.store import run_folder
from fedrbn.types import Role


def serve(grid: Grid, run_config: Values) -> dict[str, Any]:
    """Train and evaluate the experiment of the run config with the connected nodes; returns the record."""
    experiment, settings = experiment_of(run_config)
    if experiment.malice.attack is not None:
        raise ConfigError(
            f"got malice.attack = {experiment.malice.attack!r} in a federation; expected none: simulated attackers are "
            "for embedded runs. Leave the section out."
        )
    privacy_of(experiment)  # rejects conflicting settings, which no node could detect
    noise = (experiment.privacy.statistics_noise, experiment.privacy.update_noise)
    if noise != (None, None) and not experiment.privacy.secret:
        raise ConfigError(
            "got noise in [privacy] without privacy.secret in a federation; expected it to be true: the server "
            "and all nodes know the run's seed and can subtract noise that comes from it. Set privacy.secret = true."
        )
    directory = _directory(experiment)
    log = EventLog(directory.path / "events.jsonl")
    with directory.locked():
        recover(directory)
        finished = directory.records("evaluations.jsonl")
        if finished:
            log("finished before", round=finished[0]["round"])
            return finished[0]
        try:
            federation = _gathered(grid, experiment, settings, directory, log)
            execute = grid_execute(federation.line(grid))
            record = train_and_evaluate(
                federation.prepared(), directory, execute, RoundLog(log), revise=federation.revise
            )
        except Exception as error:  # any error: it must also appear in the log
            log("stopped", reason=f"{type(error).__name__}: {error}")
            raise
        log("finished", round=record["round"], mean=record["mean"], unanswered=record.get("unanswered", {}))
        return record


def _directory(experiment: Experiment) -> RunDirectory:
    """The run's directory, new or existing; a directory of another experiment is an error."""
    path = Path(experiment.run.out) if experiment.run.out else run_folder(Path("runs"), experiment, "flower-")
    if not (path / "config.toml").exists():
        return RunDirectory.create(path, experiment)
    directory = RunDirectory.open(path)
    if directory.experiment().key() != experiment.key():
        raise StorageError(
            f"got run directory {path}, which holds another experiment ({directory.experiment().key()}); expected "
            f"{experiment.key()}, to continue it. Choose another run.out, or the settings it was started with."
        )
    return directory


def _token(directory: RunDirectory) -> str:
    """Identifies this run to its clients; the same when it is resumed."""
    path = directory.path / "token.json"
    if not path.exists():
        write_atomically(path, json.dumps(secrets.token_hex(16)).encode())
    return str(json.loads(path.read_text(encoding="utf-8")))


def _gathered(
    grid: Grid, experiment: Experiment, settings: FlowerConfig, directory: RunDirectory, log: EventLog
) -> RemoteFederation:
    """Wait until enough nodes have introduced themselves, and admit those that agree."""
    token = _token(directory)
    setup = wire.text(setup_for(Role.ST, experiment, token))
    discovery = NodeDiscovery(
        grid,
        setup,
        lambda node: too_large(node, experiment),
        log,
        deadline=settings.introduction,
        poll=settings.poll,
        bind=settings.bind_keys,
    )
    log("waiting", nodes=settings.nodes, seconds=settings.wait)
    end = time.monotonic() + settings.wait
    here, candidates = _wait(discovery, settings, end)
    common = _common(directory, settings, [candidate.introduction for candidate in candidates])
    federation = RemoteFederation(Terms(experiment, settings, common, token, directory, log), discovery)
    federation.roster.update(here, candidates)
    while len(federation.roster.present) < settings.nodes:
        if time.monotonic() > end:
            raise ConfigError(
                f"got {len(federation.roster.present)} nodes that agree with the server; expected flower.nodes = "
                f"{settings.nodes}. events.jsonl says why the others were refused."
            )
        time.sleep(settings.poll)
        federation.refresh()
    return federation


def _wait(discovery: NodeDiscovery, settings: FlowerConfig, end: float) -> tuple[set[int], list[Candidate]]:
    """The connected nodes, and the nodes that have introduced themselves, in order; enough of them, before `end`."""
    candidates: dict[int, Candidate] = {}
    while True:
        here, new = discovery.discover()
        candidates = {node: known for node, known in candidates.items() if node in here}
        candidates |= {candidate.node: candidate for candidate in new}
        if len(candidates) >= settings.nodes:
            return here, sorted(candidates.values(), key=lambda candidate: candidate.order)
        if time.monotonic() > end:
            raise ConfigError(
                f"got {len(candidates)} nodes that take part within {settings.wait:g} s; expected flower.nodes = "
                f"{settings.nodes}. Start more SuperNodes; events.jsonl says why others were refused."
            )
        time.sleep(settings.poll)


def _common(directory: RunDirectory, settings: FlowerConfig, nodes: list[Introduction]) -> Agreement:
    """What nodes must have in common: as earlier in this run, else what most nodes have."""
    found = agreement(version("fedrbn"), settings.classes, nodes)
    if not described(directory):
        return found
    _, classes, image_shape = directory.description()
    return found.model_copy(update={"classes": classes, "image_shape": image_shape})
