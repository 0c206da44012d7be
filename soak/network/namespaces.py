"""Private network namespaces: a hub with a bridge, the server, and one for each node behind a slow link.

    server ── hub (a bridge, and the proxy of `soak.network.proxy`) ──┬── node 0, 10 Mbit/s each way
                                                                      ├── node 1 …

Nothing outside these namespaces is changed or reached: the bridge is in the hub, which has no route out. `netem`, which
could add latency, is not in every kernel: `tbf` slows the links, the proxy does the rest.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

RATE = "10mbit"
HUB, SERVER = "10.77.0.1", "10.77.0.2"
_FIRST = 10
"""The last number of the first node's address."""
_CLONE_NEWNET = 0x40000000
_NAMED = Path("/run/netns")


@dataclass(frozen=True)
class Network:
    """The names of the namespaces. Create it with `network`, which removes them."""

    prefix: str
    nodes: tuple[str, ...]

    @property
    def hub(self) -> str:
        """The namespace of the bridge and the proxy."""
        return f"{self.prefix}-hub"

    @property
    def server(self) -> str:
        """The namespace of the SuperLink."""
        return f"{self.prefix}-server"

    def of(self, node: str) -> str:
        """The namespace of a node."""
        return f"{self.prefix}-{node}"

    @property
    def all(self) -> list[str]:
        """All namespaces."""
        return [self.hub, self.server, *map(self.of, self.nodes)]

    def command(self, namespace: str, *command: str) -> list[str]:
        """A command that runs in a namespace."""
        return ["ip", "netns", "exec", namespace, *command]

    def cut(self, *nodes: str) -> None:
        """Disconnect these nodes."""
        for node in nodes:
            _ip("-n", self.hub, "link", "set", self._port(node), "down")

    def mend(self, *nodes: str) -> None:
        """Reconnect them."""
        for node in nodes:
            _ip("-n", self.hub, "link", "set", self._port(node), "up")

    def cut_server(self) -> None:
        """Disconnect the server: its own processes still reach each other, nodes do not reach it."""
        _ip("-n", self.hub, "link", "set", "server", "down")

    def mend_server(self) -> None:
        """Reconnect it."""
        _ip("-n", self.hub, "link", "set", "server", "up")

    def _port(self, node: str) -> str:
        return f"p{self.nodes.index(node)}"

    def make(self) -> None:
        """Create all namespaces."""
        for namespace in self.all:
            _ip("netns", "add", namespace)
            _ip("-n", namespace, "link", "set", "lo", "up")
        _ip("-n", self.hub, "link", "add", "bridge", "type", "bridge")
        _ip("-n", self.hub, "addr", "add", f"{HUB}/24", "dev", "bridge")
        _ip("-n", self.hub, "link", "set", "bridge", "up")
        self._connect(self.server, "server", SERVER)
        for number, node in enumerate(self.nodes):
            self._connect(self.of(node), self._port(node), f"10.77.0.{_FIRST + number}")
            for namespace, device in ((self.hub, self._port(node)), (self.of(node), "eth0")):
                slow = ("tbf", "rate", RATE, "burst", "32kb", "latency", "400ms")
                _run("tc", "-n", namespace, "qdisc", "add", "dev", device, "root", *slow)

    def _connect(self, namespace: str, port: str, address: str) -> None:
        peer = ("peer", "name", "eth0", "netns", namespace)
        _ip("-n", self.hub, "link", "add", port, "type", "veth", *peer)
        _ip("-n", self.hub, "link", "set", port, "master", "bridge")
        _ip("-n", self.hub, "link", "set", port, "up")
        _ip("-n", namespace, "addr", "add", f"{address}/24", "dev", "eth0")
        _ip("-n", namespace, "link", "set", "eth0", "up")

    def remove(self) -> None:
        """End all processes in the namespaces and remove them."""
        for namespace in self.all:
            if not (_NAMED / namespace).exists():
                continue
            _end(namespace)
            _ip("netns", "del", namespace)


@contextmanager
def network(nodes: Sequence[str]) -> Iterator[Network]:
    """Namespaces that are removed when this block ends, also after errors."""
    made = Network(f"soak{os.getpid()}", tuple(nodes))
    try:
        made.make()
        yield made
    finally:
        made.remove()


def impossible() -> str | None:
    """Why namespaces cannot be created here; None if they can."""
    missing = [tool for tool in ("ip", "tc", "mount") if shutil.which(tool) is None]
    if missing:
        return f"got no {missing[0]} on this machine; expected iproute2 and mount. Install them."
    if os.geteuid() != 0:
        return "got a user who is not root; expected root, because only root can create network namespaces. Use sudo."
    try:
        with network(["trial"]):
            return None
    except subprocess.CalledProcessError as error:
        said = error.stderr.strip() or f"exit code {error.returncode}"
        return f"got {said!r} from {' '.join(error.cmd)}; expected namespaces, veth, bridges and tbf in this kernel."


@contextmanager
def inside(namespace: str) -> Iterator[None]:
    """This thread, and the processes that it starts, are in a namespace within the block."""
    here = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    there = os.open(_NAMED / namespace, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _enter(there)
        yield
    finally:
        _enter(here)
        os.close(there)
        os.close(here)


def _enter(handle: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(handle, _CLONE_NEWNET):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), "setns")


def _end(namespace: str) -> None:
    """Kill all processes in a namespace, and wait until they have ended."""
    for _ in range(50):
        pids = [int(pid) for pid in _ip("netns", "pids", namespace).split() if int(pid) != os.getpid()]
        if not pids:
            return
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)


def _ip(*arguments: str) -> str:
    return _run("ip", *arguments)


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=30).stdout  # noqa: S603  (our own)
