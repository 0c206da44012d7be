"""A whole deployment on this machine: TLS, a SuperLink, one authenticated SuperNode for each client, runs, a table.

The site with its keys is created in a temporary folder and removed afterwards; runs and logs are kept.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from fedrbn.config import Experiment
from fedrbn.deploy.fleet import RunningFleet, fleet, local_plan
from fedrbn.deploy.site import create
from fedrbn.errors import DeployError
from fedrbn.evaluation.records import EvaluationRecord
from fedrbn.runs.directory import RunDirectory
from fedrbn.runs.records import evaluations, rounds

TIMEOUT = 3600.0


def deploy_and_train(
    experiments: Mapping[str, Experiment], clients: int, out: Path, say: Callable[[str], None]
) -> dict[str, EvaluationRecord]:
    """Train experiments one after another on a fleet with this many nodes; returns the evaluation record of each.

    Writes the runs to `out`, by name, and the logs of all processes to `out/logs`. `say` receives progress messages.
    """
    if out.exists() and any(out.iterdir()):
        raise DeployError(f"got {out}, which is not empty; expected a new directory. Remove it or choose another.")
    first = next(iter(experiments.values()))
    plan = local_plan(first, clients)
    with tempfile.TemporaryDirectory(prefix="fedrbn-site-") as folder:
        site = create(Path(folder) / "site", plan)
        with fleet(site, out / "logs") as started:
            say("starting the SuperLink (TLS, with a new certificate)")
            started.start_superlink()
            say(f"registering the keys of {clients} nodes")
            started.register()
            for node in plan.nodes:
                started.start_node(node.name)
            say(f"started {clients} SuperNodes")
            return {name: _train(started, name, experiment, out, say) for name, experiment in experiments.items()}


def _train(
    fleet: RunningFleet, name: str, experiment: Experiment, out: Path, say: Callable[[str], None]
) -> EvaluationRecord:
    run = fleet.submit_experiment(name, experiment)
    directory = RunDirectory(fleet.site.server / name)
    told = 0

    def tell_rounds() -> None:
        nonlocal told
        for record in rounds(directory)[told:]:
            told += 1
            say(f"{name}: round {record.round}, {record.seconds:.1f} s, clients {', '.join(record.clients)}")

    status = fleet.wait(run, TIMEOUT, tell_rounds)
    tell_rounds()
    if status != "finished:completed":
        raise DeployError(f"got run {name} {status}; expected finished:completed. The logs are in {fleet.logs}.")
    shutil.copytree(directory.path, out / name)
    return evaluations(directory)[-1]
