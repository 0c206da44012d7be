"""One run of a fleet with faults of the network, clocks, certificates and disks."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedrbn import config
from fedrbn.config import Experiment
from fedrbn.deploy import processes
from fedrbn.deploy.certificates import Issued, issue
from fedrbn.deploy.fleet import ADMITTED, RunningFleet, fleet
from fedrbn.deploy.site import SUPERLINK, Node, Site, SitePlan, create, renew_server
from fedrbn.errors import DeployError
from fedrbn.evaluation.records import RoundRecord
from fedrbn.flower.log import events
from fedrbn.runs.directory import RunDirectory
from fedrbn.runs.records import evaluations, rounds
from soak.network import machines
from soak.network.namespaces import HUB, SERVER, Network, inside
from soak.replay import ensure_explained
from soak.setting import LostError, Row

DOMAINS = ("plain", "pen", "texture", "street")
THIEF, STRANGER = "thief", "stranger"
"""A registered node that claims another node's client; a node whose key is not registered."""
PORT = 9092
ROUNDS = 10
SERVER_CUT = 60.0
NODE_DISK, SERVER_DISK = 8, 64
"""Megabytes."""
RUN = "soak"
DAY = 24 * 3600
ENDED = "supervisor: ended with exit code"
"""What the supervisor prints when a node has ended."""
DISK_FULL = ("No space left", "disk is full", "Finished task")
"""What the SuperLink prints after a failed write: its own error, or that the server's program has ended with one."""


@dataclass(frozen=True)
class Trial:
    """A running fleet, and what is needed to disturb it."""

    deployed: RunningFleet
    network: Network
    nodes: tuple[str, ...]
    experiment: Experiment
    deadline: float
    patience: float
    random: np.random.Generator
    say: Callable[[str], None]

    @property
    def site(self) -> Site:
        """Its folder."""
        return self.deployed.site

    @property
    def run(self) -> Path:
        """The run's directory, on the server's disk."""
        return self.site.server / RUN

    def submit(self) -> str:
        """Start or resume the run, once all nodes are connected."""
        times = {"deadline": self.deadline, "introduction": self.deadline, "wait": self.patience, "poll": 0.5}
        return self.deployed.submit_experiment(RUN, self.experiment, nodes=len(self.nodes), **times)

    def log(self, name: str) -> str:
        """The complete output of a process."""
        path = self.deployed.logs / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def finished(self) -> int:
        """The number of finished rounds."""
        return len(RunDirectory(self.run).records("rounds.jsonl"))

    def joined(self) -> dict[str, set[str]]:
        """All nodes that have ever joined as each client."""
        found: dict[str, set[str]] = {}
        for event in events(self.run / "events.jsonl", "joined"):
            found.setdefault(event["client"], set()).add(event["node"])
        return found

    def until(self, what: str, condition: Callable[[], bool]) -> None:
        """Wait for a condition."""
        deadline = time.monotonic() + self.patience
        while not condition():
            if time.monotonic() > deadline:
                raise LostError(f"got nothing for {self.patience:g} s; expected {what}.")
            time.sleep(0.5)
        self.say(what)

    def until_in_round(self, number: int, nodes: Sequence[str]) -> None:
        """Wait until a round has started and one of these nodes has received its job."""
        self.until(f"round {number - 1} is finished", lambda: self.finished() >= number - 1)
        mark = f"ROUND {number - 1}]"
        self.until(f"round {number} is under way", lambda: any(mark in self.log(node) for node in nodes))


def experiment_for(nodes: int) -> Experiment:
    """A tiny experiment: this many users of four domains, a quarter of them AT users, at least two."""
    settings: dict[str, dict[str, Any]] = {
        "data": {"domains": DOMAINS},
        "federation": {
            "users_per_domain": nodes // len(DOMAINS),
            "at": [f"{domain}-0" for domain in DOMAINS[: at_users(nodes)]],
            "fraction": 0.02 * max(1, nodes // 8),
            "validation": 0.0,
            "test_samples": 8,
        },
        "model": {"width": 1 / 16},
        "train": {"rounds": ROUNDS, "lr": 0.05},
        "attack": {"steps": 2},
        "run": {"workers": 1},
        "faults": {"min_clients": 0.5, "on_too_few": "wait", "wait_seconds": 2.0},
    }
    return config.make(settings)


def at_users(nodes: int) -> int:
    """The number of nodes that train adversarially: the first node of each of this many domains."""
    return max(2, nodes // len(DOMAINS))


def names(nodes: int) -> tuple[str, ...]:
    """The nodes that take part."""
    return tuple(f"node-{i}" for i in range(nodes))


@contextmanager
def trial(
    folder: Path, network: Network, nodes: int, seed: int, deadline: float, patience: float, say: Callable[[str], None]
) -> Iterator[Trial]:
    """A site with a running server and proxy; nodes are not started yet. Everything ends with the block."""
    experiment = experiment_for(nodes)
    fleet_nodes = [Node(name, partition=i) for i, name in enumerate(names(nodes))]
    others = (Node(THIEF, partition=0), Node(STRANGER, partition=0))
    site = create(folder / "site", SitePlan((HUB, SERVER), PORT, (*fleet_nodes, *others), experiment))
    (site.server / "keys" / f"{STRANGER}.pub").unlink()
    machines.settle(site, network)
    environment = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "1", "OMP_NUM_THREADS": "1"}
    with ExitStack() as held:
        held.enter_context(machines.small_disk(site.server, SERVER_DISK))
        held.enter_context(machines.small_disk(site.node(names(nodes)[-1]), NODE_DISK))
        held.enter_context(inside(network.server))
        deployed = held.enter_context(fleet(site, folder / "logs", environment))
        _start_proxy(deployed, network, seed)
        deployed.start_superlink()
        random = np.random.default_rng(seed)
        yield Trial(deployed, network, names(nodes), experiment, deadline, patience, random, say)


def _start_proxy(deployed: RunningFleet, network: Network, seed: int) -> None:
    own = ("python", "-m", "soak.network.proxy", f"{HUB}:{PORT}", f"{SERVER}:{PORT}", "--seed", str(seed))
    command = network.command(network.hub, *own, "--counts", str(deployed.logs / "proxy.json"))
    log = deployed.logs / "proxy.log"
    deployed.running["proxy"] = processes.launch("proxy", command, log, deployed.environment)


def rows(trial: Trial) -> list[Row]:
    """Disturb the fleet in every way; the first loss ends it with an error."""
    trial.submit()
    machines.register(trial.site)
    trial.say("registered the keys")
    found = [*_started(trial), *_cut_nodes(trial), _cut_server(trial), _full_server_disk(trial)]
    found.append(_expired_certificate(trial))
    status = trial.deployed.wait(trial.submit(), trial.patience)
    if status != "finished:completed":
        raise LostError(f"got a run that ended as {status}; expected it to be completed.")
    counted = ensure_explained(trial.run, trial.experiment)
    _ensure_nobody_else(trial)
    return [_network_row(trial, counted), *found]


def _started(trial: Trial) -> list[Row]:
    """Start the fleet, with two wrong clocks at first and an unregistered node; the run waits for all nodes."""
    library = machines.other_clock(trial.site.root)
    clocks = {trial.nodes[-2]: -DAY, trial.nodes[-3]: DAY} if library else {}
    for node, offset in clocks.items():
        machines.set_clock(trial.site, node, offset, library)
    for node in (*trial.nodes, STRANGER):
        trial.deployed.start_node(node)
    right = [node for node in trial.nodes if node not in clocks]
    trial.until("nodes with a correct clock are admitted", lambda: all(ADMITTED in trial.log(node) for node in right))
    wrong = (*clocks, STRANGER)
    trial.until("the others have been rejected", lambda: all(ENDED in trial.log(node) for node in wrong))
    if [node for node in wrong if ADMITTED in trial.log(node)] or trial.joined():
        raise LostError("got a node admitted with a wrong clock or key, or a run without all nodes; expected neither.")
    trial.deployed.stop(STRANGER)
    for node in clocks:
        machines.set_clock(trial.site, node)  # its supervisor restarts it
    trial.until("all nodes have joined", lambda: len(trial.joined()) == len(trial.nodes))
    refused = Row("a node whose key is not registered", 1, "rejected")
    late = "rejected, at the TLS handshake (behind) or by the time of its signature (ahead); admitted with correct time"
    return [refused, Row("a node whose clock is a day behind, or ahead", len(clocks), late)][: 2 if clocks else 1]


def _cut_nodes(trial: Trial) -> list[Row]:
    """Disconnect a third of the nodes during a round, for two rounds; meanwhile an attacker claims to be one of them.

    The disk of another node is full during that time.
    """
    victims, full = _victims(trial), trial.nodes[-1]
    trial.until_in_round(2, victims)
    trial.network.cut(*victims)
    trial.say(f"cut off {', '.join(victims)}")
    machines.fill(trial.site.node(full))
    trial.deployed.start_node(THIEF)
    trial.until("round 3 is finished", lambda: trial.finished() >= 3)
    trial.until("the attacker has been rejected", lambda: _refused(trial, "expected key"))
    trial.deployed.stop(THIEF)
    trial.network.mend(*victims)
    trial.until("the full disk has been noticed", lambda: any("No space left" in cause for cause in _causes(trial)))
    machines.make_room(trial.site.node(full))
    after = trial.finished()
    clients = {_client(trial, node) for node in (*victims, full)}
    trial.until("they are all back", lambda: clients <= {c for r in rounds_of(trial)[after:] for c in r.clients})
    rejoined = "left out of the rounds they missed, with the cause; back in a later round with their own batch norm"
    return [
        Row("a third of the nodes disconnected during a round, and back two rounds later", len(victims), rejoined),
        Row("a registered node that claims to be a disconnected client", 1, "rejected"),
        Row("a full disk on a node", 1, "left out with the cause, back once there is free space"),
    ]


def _victims(trial: Trial) -> list[str]:
    """A third of the nodes, drawn so that at least half of the AT users stay: the round continues without them."""
    count, each = len(trial.nodes), len(trial.nodes) // len(DOMAINS)
    at = trial.nodes[::each][: at_users(count)]
    st = [node for node in trial.nodes[:-1] if node not in at]
    more = trial.random.choice(at[1:], len(at) // 2 - 1, replace=False)
    others = trial.random.choice(st, count // 3 - 1 - len(more), replace=False)
    return [trial.nodes[0], *map(str, more), *map(str, others)]


def _cut_server(trial: Trial) -> Row:
    """Disconnect the server for a minute during a round."""
    trial.until_in_round(trial.finished() + 1, trial.nodes)
    trial.network.cut_server()
    trial.say("cut off the server")
    time.sleep(SERVER_CUT)
    trial.network.mend_server()
    before = trial.finished()
    trial.until("a round is finished after the server's cut", lambda: trial.finished() > before)
    return Row(
        "the server disconnected for a minute during a round", 1, "the run continues; late clients are asked again"
    )


def _full_server_disk(trial: Trial) -> Row:
    """Fill the server's disk during a round, until an error is reported."""
    number = trial.finished()
    trial.until_in_round(number + 1, trial.nodes)
    said = len(trial.log(SUPERLINK))
    machines.fill(trial.site.server)
    trial.until(
        "the full disk has been noticed", lambda: any(text in trial.log(SUPERLINK)[said:] for text in DISK_FULL)
    )
    time.sleep(5)
    machines.make_room(trial.site.server)
    if not number <= trial.finished() < ROUNDS:
        raise LostError(
            f"got {trial.finished()} rounds after the disk was full in round {number + 1}; expected no loss."
        )
    return Row("a full disk on the server", 1, "the run stops or continues, and loses no finished round")


def _expired_certificate(trial: Trial) -> Row:
    """The server loses power and restarts with an expired certificate; then the certificate is renewed."""
    site, before = trial.site, {node: len(trial.log(node)) for node in trial.nodes}
    trial.deployed.kill(SUPERLINK)
    authority = Issued((site.authority / "ca.crt").read_bytes(), (site.authority / "ca.key").read_bytes())
    expired = issue(authority, site.hosts, days=-1 / 48)  # half an hour ago
    (site.server / "server.crt").write_bytes(expired.certificate)
    (site.server / "server.key").write_bytes(expired.key)
    try:
        trial.deployed.start_superlink()
    except DeployError as error:
        if "expired" not in str(error):
            raise
    else:
        raise LostError("got an expired certificate that is accepted; expected it to be rejected.")

    def since(node: str) -> str:
        return trial.log(node)[before[node] :]

    trial.until("nodes reject it", lambda: all("certificate has expired" in since(node) for node in trial.nodes))
    if [node for node in trial.nodes if ADMITTED in since(node)]:
        raise LostError("got a node that trusts an expired certificate; expected none.")
    renew_server(site)
    trial.deployed.stop(SUPERLINK)
    trial.deployed.start_superlink()
    refused = "rejected by all nodes; with a renewed one all reconnect automatically, and the run continues"
    return Row("the SuperLink killed (SIGKILL), and restarted with an expired certificate", 1, refused)


def _network_row(trial: Trial, counted: int) -> Row:
    """What the links and the proxy did in the whole run, and what happened to the answers."""
    proxy = json.loads((trial.deployed.logs / "proxy.json").read_text())
    missed = sum(len(record.failures) for record in rounds_of(trial))
    starts = sum(trial.log(node).count(ENDED) for node in trial.nodes)
    unanswered = len(events(trial.run / "events.jsonl", "finished")[-1]["unanswered"])
    return Row(
        f"{len(trial.nodes)} SuperNodes over TLS behind 10 Mbit/s and 100 ms each way; of {proxy['connections']:,} "
        f"connections {proxy['reset']} reset, {proxy['closed']} closed, {proxy['stalled']} stalled for 5 to 35 s",
        proxy["connections"],
        f"{counted} of {len(trial.nodes) * ROUNDS} answers in {ROUNDS} rounds count, {missed} failures recorded with "
        f"cause; nodes restarted {starts} times; {unanswered} without an answer in the last evaluation; the "
        "weights are those of an embedded run in which the same clients took part in the same rounds",
    )


def _ensure_nobody_else(trial: Trial) -> None:
    """Raise unless exactly the fleet's clients have joined, each always from the same node."""
    joined = trial.joined()
    several = [client for client, nodes in joined.items() if len(nodes) > 1]
    if len(joined) != len(trial.nodes) or several or len(evaluations(RunDirectory.open(trial.run))) != 1:
        raise LostError(f"got {len(joined)} clients, {several} from several nodes; expected each from its own, once.")


def rounds_of(trial: Trial) -> list[RoundRecord]:
    """The finished rounds."""
    return rounds(RunDirectory(trial.run))


def _client(trial: Trial, node: str) -> str:
    each = len(trial.nodes) // len(DOMAINS)
    domain, place = divmod(trial.nodes.index(node), each)
    return f"{DOMAINS[domain]}-{place}"


def _refused(trial: Trial, reason: str) -> bool:
    return any(reason in event["reason"] for event in events(trial.run / "events.jsonl", "refused"))


def _causes(trial: Trial) -> list[str]:
    """Why clients failed in training so far."""
    return [cause for event in events(trial.run / "events.jsonl", "train") for cause in event["failed"].values()]
