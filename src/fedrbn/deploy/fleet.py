"""The whole site as processes on this machine: SuperLink, SuperNodes, a run. All are ended by pid, also after errors.

It starts the same scripts that a site copies to its machines, so a fleet that works here also tests them.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import ssl
import subprocess
import sysconfig
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from fedrbn.config import Experiment
from fedrbn.deploy import processes
from fedrbn.deploy.processes import Running
from fedrbn.deploy.site import SUPERLINK, Node, Site, SitePlan
from fedrbn.errors import DeployError
from fedrbn.files import write_atomically

STARTUP = 120.0
"""Seconds a process may take to start; a small, busy machine needs several."""
PAUSE = 0.3
ADMITTED = "SuperNode ID: "
"""What a SuperNode prints once the SuperLink has admitted it."""


class RunningFleet:
    """The processes of a site that run on this machine. Create it with `fleet`, which ends them."""

    def __init__(self, site: Site, logs: Path, environment: Mapping[str, str]) -> None:
        self.site = site
        self.logs = logs
        self.environment = dict(environment)
        self.running: dict[str, Running] = {}

    def start_superlink(self, startup: float = STARTUP) -> Running:
        """Start the server and wait until it answers over TLS with a certificate of the site's authority."""
        started = self._launch(SUPERLINK, self.site.server / "superlink.sh")
        deadline = time.monotonic() + startup
        while started.alive() and time.monotonic() < deadline:
            try:
                if _answers(self.site):
                    return started
            except ssl.SSLCertVerificationError as error:
                raise DeployError(
                    f"got a SuperLink whose certificate is rejected: {error.verify_message}; expected one that the "
                    "site's authority has signed and that is valid now. Renew it with fedrbn deploy renew --server."
                ) from None
            time.sleep(PAUSE)
        fault = f"does not answer after {startup:g} s" if started.alive() else "ended during its start"
        raise DeployError(f"got a SuperLink that {fault}; its last output:\n{started.tail()}")

    def register(self) -> None:
        """Register the keys of all nodes that are not registered yet."""
        self._command("register.sh")

    def start_node(self, name: str) -> Running:
        """Start a node; it connects automatically, and reconnects whenever the connection is lost."""
        return self._launch(name, self.site.node(name) / "supernode.sh")

    def revive_node(self, name: str, patience: float = 120.0) -> Running:
        """Restart a node that was killed, repeatedly until it is admitted.

        Flower rejects a node while it believes that the earlier one with the same key is alive: about a minute.
        """
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            started = self.start_node(name)
            while started.alive() and time.monotonic() < deadline:
                if ADMITTED in started.tail():
                    return started
                time.sleep(PAUSE)
            self.stop(name)
        raise DeployError(f"got node {name} rejected for {patience:g} s; its last output:\n{started.tail()}")

    def submit(self, *options: str) -> str:
        """Start a run with these options of `flwr run`; returns its id."""
        answer = self._json("run.sh", *options)
        return str(answer["run-id"])

    def submit_experiment(self, name: str, experiment: Experiment, **settings: str | int | float) -> str:
        """Start or resume an experiment whose run directory is `name` in the server's folder; returns the run's id.

        `settings` are further settings of the server, `flower.…` in the run config, such as deadline=60.
        """
        file = f"experiment-{name}.toml"
        write_atomically(self.site.server / file, experiment.to_toml().encode())
        values = {"run.out": name, "flower.config": file, **{f"flower.{key}": value for key, value in settings.items()}}
        return self.submit("--run-config", " ".join(f"{key}={json.dumps(value)}" for key, value in values.items()))

    def status(self, run: str) -> str:
        """What the SuperLink says about a run: `running`, `finished:completed`, `finished:failed`, …"""
        answer = self._json("flwr.sh", "list", "site", "--run-id", run)
        return str(answer["runs"][0]["status"])

    def online(self) -> int:
        """The number of registered nodes that the SuperLink has recently heard from."""
        return sum(node["status"] == "online" for node in self._json("flwr.sh", "supernode", "list", "site")["nodes"])

    def wait(self, run: str, timeout: float, meanwhile: Callable[[], None] = lambda: None) -> str:
        """Wait until a run has finished, calling `meanwhile` from time to time; returns how it finished.

        The output of the run goes to its own log.
        """
        deadline = time.monotonic() + timeout
        while not (status := self.status(run)).startswith("finished"):
            follower = self._launch(f"run-{run}", self.site.server / "flwr.sh", "log", run, "site")
            while follower.alive():  # it ends with the run
                meanwhile()
                self._check(run, deadline)
                time.sleep(PAUSE)
            self.stop(follower.name)
        return status

    def _check(self, run: str, deadline: float) -> None:
        alive = {name for name, one in self.running.items() if one.alive()}
        if SUPERLINK not in alive:
            raise DeployError(f"got a SuperLink that ended during run {run}. The logs are in {self.logs}.")
        if time.monotonic() > deadline:
            raise DeployError(f"got run {run} that did not finish within its time limit. The logs are in {self.logs}.")

    def kill(self, name: str) -> None:
        """End a process and its children immediately, as if its machine had lost power."""
        processes.kill(self.running.pop(name))

    def stop(self, *names: str) -> None:
        """End these processes, or all of them, gracefully; nodes first, because they sign off at the SuperLink."""
        chosen = [self.running.pop(name) for name in names or tuple(self.running)]
        try:
            processes.stop([one for one in chosen if one.name != SUPERLINK])
        finally:
            processes.stop([one for one in chosen if one.name == SUPERLINK])

    def _launch(self, name: str, script: Path, *arguments: str) -> Running:
        command = ["/bin/sh", str(script), *arguments]
        started = processes.launch(name, command, self.logs / f"{name}.log", self.environment)
        self.running[name] = started
        return started

    def _command(self, script: str, *arguments: str) -> str:
        done = subprocess.run(  # noqa: S603  (one of our own scripts)
            ["/bin/sh", str(self.site.server / script), *arguments],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise DeployError(f"got exit code {done.returncode} from {script}; its output:\n{done.stdout}{done.stderr}")
        return done.stdout

    def _json(self, script: str, *arguments: str) -> dict[str, Any]:
        """The answer of a flwr command as JSON; text that it prints before is skipped."""
        output = self._command(script, *arguments, "--format", "json")
        answer: dict[str, Any] = json.loads(output[output.index("{") :])
        if not answer.get("success"):
            raise DeployError(
                f"got an error from {script} {' '.join(arguments)}: {answer.get('error-message', output)}"
            )
        return answer


@contextmanager
def fleet(site: Site, logs: Path, environment: Mapping[str, str] | None = None) -> Iterator[RunningFleet]:
    """A fleet whose processes end with this block, also on an error, on Ctrl-C and on SIGTERM."""
    logs.mkdir(parents=True, exist_ok=True)
    made = RunningFleet(site, logs, {**os.environ, "FEDRBN_BIN": sysconfig.get_path("scripts"), **(environment or {})})
    # Background jobs of a shell inherit an ignored SIGINT; here SIGINT always ends the fleet.
    with _handling(signal.default_int_handler, signal.SIGINT), _handling(_leave, signal.SIGTERM):
        try:
            yield made
        finally:
            with _handling(signal.SIG_IGN, signal.SIGINT, signal.SIGTERM):  # a second Ctrl-C must not interrupt this
                made.stop()


def free_ports(count: int) -> list[int]:
    """This many TCP ports of the loopback that are currently free."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]


def local_plan(experiment: Experiment, clients: int) -> SitePlan:
    """A site on this machine: `node-0`, `node-1`, … for the users of the experiment's own data, on free ports."""
    port, *ports = free_ports(clients + 1)
    nodes = tuple(Node(f"node-{i}", partition=i, port=own) for i, own in enumerate(ports))
    return SitePlan(("localhost",), port, nodes, experiment)


@contextmanager
def _handling(handler: Callable[[int, FrameType | None], None] | signal.Handlers, *signals: int) -> Iterator[None]:
    """Use this handler for these signals within the block."""
    before = {number: signal.signal(number, handler) for number in signals}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)


def _leave(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
    raise SystemExit(128 + number)


def _answers(site: Site) -> bool:
    """Whether a SuperLink with a certificate of the site's authority answers on the site's port.

    An invalid certificate is an error: waiting does not help.
    """
    context = ssl.create_default_context(cafile=str(site.server / "ca.crt"))
    connection = http.client.HTTPSConnection("127.0.0.1", site.port, context=context, timeout=5)
    with closing(connection):
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == http.client.OK
        except ssl.SSLCertVerificationError:
            raise
        except (OSError, http.client.HTTPException):
            return False
