"""Real processes on the loopback: TLS with certificates made on the spot, authenticated nodes, all ended by pid.

One SuperLink serves all tests of this file, in their order. Times are generous, because machines may be busy; a test
that passes does not wait for them.
"""

from __future__ import annotations

import http.client
import os
import shutil
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import torch

import fedrbn
from fedrbn import config
from fedrbn.config import Experiment
from fedrbn.deploy.fleet import RunningFleet, fleet, free_ports, local_plan
from fedrbn.deploy.processes import ProcessIdentity, alive, family
from fedrbn.deploy.site import Node, Site, SitePlan, create, renew_node
from fedrbn.federated.protocol import ServerState
from fedrbn.flower.log import events
from fedrbn.runs.directory import RunDirectory

pytestmark = pytest.mark.slow

DOMAINS = ("plain", "pen", "texture", "street")
NODES = ("node-0", "node-1", "node-2", "node-3")
SMALL: dict[str, dict[str, Any]] = {
    "data": {"domains": DOMAINS},
    "federation": {
        "users_per_domain": 1,
        "at": ["plain-0"],
        "fraction": 0.02,
        "validation": 0.0,
        "test_samples": 8,
    },
    "model": {"width": 1 / 16},
    "train": {"rounds": 3, "lr": 0.05},
    "attack": {"steps": 2},
    "run": {"workers": 1},
}
PATIENCE = 1200.0
APP = Path(__file__).parents[2] / "flower"


def own_address() -> str | None:
    """An address of this machine other than the loopback, found without sending anything."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return None
        return str(probe.getsockname()[0])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """A server that other machines could reach, if this machine has an address for them; its nodes are here."""
    folder, plan = (
        tmp_path_factory.mktemp("deployment") / "site with a space",
        local_plan(config.make(SMALL), len(NODES)),
    )
    outside = own_address()
    return create(folder, replace(plan, hosts=(*plan.hosts, outside)) if outside else plan)


@pytest.fixture(scope="module")
def deployed(site: Site) -> Iterator[RunningFleet]:
    """A SuperLink and four nodes that it knows."""
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    members: set[ProcessIdentity] = set()
    with fleet(site, site.root / "logs", {"PYTHONPATH": path}) as started:
        started.start_superlink()
        started.register()
        for name in NODES:
            started.start_node(name)
        yield started
        members = {member for running in started.running.values() for member in family(running.pid)}
        assert members
    assert alive(members) == set(), "processes were left behind"


def until(condition: Callable[[], Any], timeout: float = PATIENCE) -> Any:
    """Wait for a condition; returns its first value that counts as true."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.2)
    raise AssertionError(f"waited {timeout:g} s in vain")


def last(path: Path) -> ServerState:
    checkpoint = RunDirectory.open(path).checkpoint("last")
    assert checkpoint is not None
    return checkpoint.state


def kept(path: Path) -> int:
    """Rounds in the checkpoint; 0 in the moment in which one takes the place of another."""
    checkpoint = RunDirectory.open(path).checkpoint("last")
    return checkpoint.state.round if checkpoint else 0


def of_method(name: str) -> Experiment:
    return config.make(config.with_settings(SMALL, [("method", "name", name)]))


@pytest.mark.parametrize("method", ["fedrbn", "fatavg"])
def test_a_deployment_gives_the_weights_of_an_embedded_run(deployed: RunningFleet, tmp_path: Path, method: str) -> None:
    here = fedrbn.run(of_method(method), tmp_path / "embedded")
    run = deployed.submit_experiment(method, of_method(method))
    assert deployed.wait(run, PATIENCE) == "finished:completed"

    there = deployed.site.server / method
    ours, theirs = last(there), last(tmp_path / "embedded")
    assert ours.round == theirs.round == 3
    torch.testing.assert_close(ours.shared, theirs.shared, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ours.personal, theirs.personal, rtol=1e-4, atol=1e-5)
    record = RunDirectory.open(there).records("evaluations.jsonl")[0]
    assert record["mean"].keys() == here["mean"].keys()
    assert record["samples_digest"] == here["samples_digest"]


def test_the_app_that_a_simulation_runs_is_deployed_without_a_change(deployed: RunningFleet) -> None:
    """The folder flower/ instead of the app in the site, with the command of its README."""
    one_round = tomli_w.dumps({**SMALL, "train": {"rounds": 1}})
    (deployed.site.server / "app-experiment.toml").write_text(one_round, encoding="utf-8")
    settings = "flower.config='app-experiment.toml' flower.nodes=4 run.out='app-run'"
    run = deployed._json("flwr.sh", "run", str(APP), "site", "--run-config", settings)["run-id"]
    assert deployed.wait(str(run), PATIENCE) == "finished:completed"
    (trained,) = events(deployed.site.server / "app-run" / "events.jsonl", "train")
    assert len(trained["clients"]) == 4


def guest(deployed: RunningFleet, folder: Path) -> Site:
    """Another site, with an authority and a node of its own, whose node calls at the deployment's server."""
    (port,) = free_ports(1)
    node = Node("guest", partition=0, port=port)
    return create(folder, SitePlan(("localhost",), deployed.site.port, (node,), config.make(SMALL)))


def refused(site: Site) -> str:
    """Start the guest and wait for its end; returns what it said."""
    with fleet(site, site.root / "logs") as visiting:
        process = visiting.start_node("guest")
        until(lambda: not process.alive(), 120)
        assert process.process.returncode != 0
        return process.tail(40)


def test_an_unregistered_key_is_refused(deployed: RunningFleet, tmp_path: Path) -> None:
    site = guest(deployed, tmp_path / "guest")
    shutil.copy(deployed.site.authority / "ca.crt", site.node("guest") / "ca.crt")
    until(lambda: deployed.online() == len(NODES))
    assert "Failed to activate SuperNode" in refused(site)
    assert deployed.online() == len(NODES)


def test_a_server_with_a_certificate_of_another_authority_is_refused(deployed: RunningFleet, tmp_path: Path) -> None:
    assert "certificate verify failed" in refused(guest(deployed, tmp_path / "guest"))


def test_other_machines_cannot_start_runs_or_register_keys(deployed: RunningFleet) -> None:
    outside = own_address()
    if outside is None:
        pytest.skip("this machine has no address but the loopback")
    context = ssl.create_default_context(cafile=str(deployed.site.server / "ca.crt"))

    def status(host: str, path: str) -> int:
        connection = http.client.HTTPSConnection(host, deployed.site.port, context=context, timeout=10)
        connection.request("POST", path, b"", {"Content-Type": "application/protobuf"})
        answer = connection.getresponse().status
        connection.close()
        return answer

    assert status("127.0.0.1", "/v1/control/list-runs") == 200
    assert status(outside, "/v1/control/list-runs") == 403
    assert status(outside, "/v1/control/register-node") == 403
    assert status(outside, "/v1/runtime/acquire-task") == 403
    assert status(outside, "/v1/fleet/get-run") == 401  # reached, and refused for want of a key


def test_other_machines_cannot_reach_a_server_on_localhost(tmp_path: Path) -> None:
    outside = own_address()
    if outside is None:
        pytest.skip("this machine has no address but the loopback")
    site = create(tmp_path / "local", local_plan(config.make(SMALL), 1))
    with fleet(site, site.root / "logs") as started:
        started.start_superlink()  # it answers on the loopback
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((outside, site.port), timeout=10)


def test_a_renewed_key_is_accepted_once_it_is_registered(deployed: RunningFleet) -> None:
    deployed.stop("node-3")
    renew_node(deployed.site, "node-3")
    process = deployed.start_node("node-3")
    until(lambda: not process.alive(), 60)
    deployed.stop("node-3")
    deployed.register()
    deployed.revive_node("node-3")


def test_dropouts(deployed: RunningFleet) -> None:
    """In one round a node raises, one is late and one is killed; then the SuperLink is killed. Nobody else suffers."""
    site, names = deployed.site, dict(zip(NODES, DOMAINS, strict=True))
    deployed.stop(*NODES)
    for node, domain in names.items():
        own = {"name": f"{domain}-0", "data": "faulty:images", "domain": domain}
        (site.node(node) / "node.toml").write_text(tomli_w.dumps(own))
        deployed.start_node(node)
    faults = [("faults", "min_clients", 1), ("faults", "on_too_few", "wait"), ("faults", "wait_seconds", 1.0)]
    experiment = config.make(config.with_settings(SMALL, [*faults, ("train", "rounds", 4)]))
    run, deadline = site.server / "dropouts", suitable_deadline(site)
    deployed.submit_experiment("dropouts", experiment, deadline=deadline)

    until(lambda: RunDirectory(run).records("rounds.jsonl"))
    for node, fault in (("node-1", "raise"), ("node-2", "sleep")):
        (site.node(node) / "fault").write_text(fault)
    deployed.kill("node-3")
    causes = until(lambda: failures(run, {"pen-0", "texture-0", "street-0"}))
    assert "the disk with the images is gone" in causes["pen-0"]

    (site.node("node-1") / "fault").unlink()
    (site.node("node-2") / "fault").unlink()
    until(lambda: kept(run) >= 2)
    deployed.kill("superlink")
    deployed.stop("node-2")  # it sleeps for an hour; a restart is what its owner would do
    deployed.start_superlink()
    deployed.revive_node("node-2")
    again = deployed.submit_experiment("dropouts", experiment, deadline=deadline, nodes=3)
    assert deployed.wait(again, PATIENCE) == "finished:completed"

    state = last(run)
    assert state.round == 4
    survivors = ("plain-0", "pen-0", "texture-0")
    assert {client: state.reported[client] for client in survivors} == dict.fromkeys(survivors, 4)
    assert state.reported["street-0"] == 1
    assert RunDirectory(run).answers().keys() == set(survivors)
    trained = fedrbn.load(run)
    image = torch.rand(1, 3, 28, 28, generator=torch.Generator().manual_seed(1))
    for client in (*survivors, "street-0"):  # the one that was lost has a network too
        assert trained.client(client)(image).isfinite().all()


def test_logs_hold_no_secrets(deployed: RunningFleet) -> None:
    keys = [path.read_text().splitlines()[1] for path in deployed.site.root.rglob("*.key")]
    assert len(keys) == 6  # the authority's, the server's, and those of four nodes
    written = "".join(path.read_text(errors="replace") for path in deployed.logs.iterdir())
    assert "RegisterNode" in written
    assert not [key for key in ("PRIVATE KEY", *keys) if key in written]


def suitable_deadline(site: Site) -> float:
    """Seconds: several times what a job took on this machine, as busy as it was in the tests before."""
    took = [event["seconds"] for path in site.server.glob("*/events.jsonl") for event in events(path, "train")]
    return 3.0 * max(took, default=30.0)


def failures(path: Path, clients: set[str]) -> dict[str, str]:
    """Why clients failed in training, once all of these have."""
    failed: dict[str, str] = {}
    for event in events(path / "events.jsonl", "train"):
        failed |= event["failed"]
    return failed if clients <= failed.keys() else {}
