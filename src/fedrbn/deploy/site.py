"""The folder that `fedrbn deploy init` writes: one part for the server, one for each node, one to store offline.

    README.md           what to copy where, ports, how to renew keys
    site.toml           the hosts, the port and the names of the nodes
    authority/          ca.crt, ca.key: signs the server's certificate; nothing that runs needs the key
    server/             copy to the server: certificate, scripts, the Flower app, experiment.toml, keys/NODE.pub
    nodes/NAME/         copy to that node: its own private key, the authority's certificate, script, node.toml

Only their owner can read private keys (0600). A folder is created completely or not at all, and never overwritten.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import tomli_w

from fedrbn.config import Experiment
from fedrbn.config.plugins import is_reference
from fedrbn.deploy.certificates import Issued, issue, make_authority, make_node_key, subject_names
from fedrbn.errors import DeployError
from fedrbn.flower.settings import FlowerConfig

SUPERLINK = "superlink"
"""The name of the server's process."""
SECRET, SCRIPT, PLAIN = 0o600, 0o755, 0o644
NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
RUNTIME_PORT = 9094
"""Flower's own default."""
LOOPBACK = frozenset({"localhost", "127.0.0.1"})
"""Hosts that only programs on the same machine can reach."""


@dataclass(frozen=True)
class Node:
    """A planned node, with its own data or with one user's part of the data that the experiment names."""

    name: str
    data: str | None = None
    """The source of its data, as `package.module:factory`; None leaves it to be filled in on the node."""
    partition: int | None = None
    """Alternatively, the user of the experiment's own data."""
    port: int = RUNTIME_PORT
    """A loopback port for its own processes; nodes that share a machine need different ones."""

    def __post_init__(self) -> None:
        if self.name[:1] in ("", ".", "-") or self.name == SUPERLINK or not set(self.name) <= NAME_CHARACTERS:
            raise DeployError(
                f"got node name {self.name!r}; expected letters, digits, '.', '_' and '-', a letter, digit or '_' "
                f"first, and not {SUPERLINK}: it becomes the name of a folder and of a log."
            )
        if self.data is not None and not is_reference(self.data):
            raise DeployError(f"got data {self.data!r} of node {self.name}; expected package.module:factory.")


@dataclass(frozen=True)
class SitePlan:
    """Everything that defines a site, except its keys."""

    hosts: tuple[str, ...]
    """Names or addresses of the server; nodes connect to the first."""
    port: int
    nodes: tuple[Node, ...]
    experiment: Experiment

    def __post_init__(self) -> None:
        names = [node.name for node in self.nodes]
        twice = sorted({name for name in names if names.count(name) > 1})
        if not names or twice:
            got = f"several nodes named {', '.join(twice)}" if twice else "no nodes"
            raise DeployError(f"got {got}; expected at least one node, each with a different name.")
        if not self.hosts:
            raise DeployError("got no host; expected the name or address by which nodes reach the server.")
        for port in (self.port, *(node.port for node in self.nodes)):
            if not 0 < port < 65536:
                raise DeployError(f"got port {port}; expected 1 to 65535.")
        subject_names(self.hosts)  # raises an error for anything that is not a host


@dataclass(frozen=True)
class Site:
    """The layout of a site's folder."""

    root: Path

    @property
    def authority(self) -> Path:
        """The folder of the authority that signs certificates; keep it offline."""
        return self.root / "authority"

    @property
    def server(self) -> Path:
        """The server's folder."""
        return self.root / "server"

    @property
    def run(self) -> Path:
        """The run directory, written by the server."""
        return self.server / "run"

    def node(self, name: str) -> Path:
        """A node's folder."""
        return self.root / "nodes" / name

    @property
    def hosts(self) -> tuple[str, ...]:
        """The names and addresses of the server."""
        return tuple(str(host) for host in self._facts()["hosts"])

    @property
    def port(self) -> int:
        """The port of the server."""
        return int(self._facts()["port"])

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the nodes."""
        return tuple(str(name) for name in self._facts()["nodes"])

    def _facts(self) -> dict[str, Any]:
        try:
            return tomllib.loads((self.root / "site.toml").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise DeployError(
                f"got {self.root}, which is not a site ({error}); expected one made by fedrbn deploy init."
            ) from None


def create(directory: Path, plan: SitePlan) -> Site:
    """Write a new site. The folder must not exist, or be empty."""
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise DeployError(
            f"got {directory}, which already exists; expected a new or empty directory, because keys are never "
            "overwritten. Choose another, or renew parts of this one with fedrbn deploy renew."
        )
    directory.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(dir=directory.parent, prefix=f".{directory.name}."))
    try:
        _write_all(Site(draft), plan)
        draft.replace(directory)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    return Site(directory)


def renew_server(site: Site, hosts: Sequence[str] = ()) -> None:
    """Create a new certificate and key for the server, by default for the same hosts. Nodes need no change.

    If new hosts open the server to other machines, or close it to them, `superlink.sh` is written again too.
    """
    try:
        authority = Issued((site.authority / "ca.crt").read_bytes(), (site.authority / "ca.key").read_bytes())
    except FileNotFoundError as error:
        raise DeployError(
            f"got no {error.filename}; expected the authority's key. Restore the authority folder to renew."
        ) from None
    issued = issue(authority, hosts or site.hosts)
    _replace(site.server / "server.crt", issued.certificate, PLAIN)
    _replace(site.server / "server.key", issued.key, SECRET)
    if hosts and listens_on(hosts) != listens_on(site.hosts):
        _replace(site.server / "superlink.sh", _superlink_script(hosts, site.port), SCRIPT)


def listens_on(hosts: Sequence[str]) -> str:
    """The address that the server binds: the loopback if nodes reach it only there, otherwise every address."""
    return "127.0.0.1" if LOOPBACK.issuperset(hosts) else "0.0.0.0"  # noqa: S104  (nodes on other machines need it)


def renew_node(site: Site, name: str) -> None:
    """Create a new key for a node. It is valid once the server has registered it; the old one until unregistered."""
    if name not in site.names:
        raise DeployError(f"got node {name!r}; expected one of {', '.join(site.names)}.")
    pair = make_node_key()
    _replace(site.node(name) / "node.key", pair.private, SECRET)
    _replace(site.server / "keys" / f"{name}.pub", pair.public, PLAIN)


def _write_all(site: Site, plan: SitePlan) -> None:
    (site.root / "nodes").mkdir(mode=0o700)
    authority = make_authority("fedrbn site authority")
    server = f"{_in_address(plan.hosts[0])}:{plan.port}"
    write(site.authority / "ca.crt", authority.certificate)
    write(site.authority / "ca.key", authority.key, SECRET)
    _write_server(site.server, plan, authority)
    for node in plan.nodes:
        _write_node(site, node, server, authority.certificate)
    facts = {"hosts": list(plan.hosts), "port": plan.port, "nodes": [node.name for node in plan.nodes]}
    write(site.root / "site.toml", tomli_w.dumps(facts).encode())
    write(site.root / "README.md", _filled("README.md.j2", plan=plan, server=server, address=listens_on(plan.hosts)))


def _write_server(folder: Path, plan: SitePlan, authority: Issued) -> None:
    issued = issue(authority, plan.hosts)
    write(folder / "ca.crt", authority.certificate)
    write(folder / "server.crt", issued.certificate)
    write(folder / "server.key", issued.key, SECRET)
    write(folder / "environment.sh", _filled("environment.sh"))
    write(folder / "superlink.sh", _superlink_script(plan.hosts, plan.port), SCRIPT)
    write(folder / "flwr.sh", _filled("flwr.sh.j2", port=plan.port), SCRIPT)
    for script in ("register.sh", "run.sh"):
        write(folder / script, _filled(script), SCRIPT)
    settings = FlowerConfig(config="experiment.toml", nodes=len(plan.nodes)).model_dump()
    write(folder / "app" / "pyproject.toml", _filled("app.toml.j2", settings=settings))
    write(folder / "experiment.toml", plan.experiment.to_toml().encode())
    service = _service("fedrbn-superlink.service", "FedRBN: SuperLink", "/opt/fedrbn/server", "superlink.sh")
    write(folder / "fedrbn-superlink.service", service)


def _write_node(site: Site, node: Node, server: str, authority: bytes) -> None:
    folder, pair = site.node(node.name), make_node_key()
    script = _filled("supernode.sh.j2", name=node.name, port=node.port, server=server)
    write(folder / "ca.crt", authority)
    write(folder / "node.key", pair.private, SECRET)
    write(folder / "node.toml", _filled("node.toml.j2", node=node))
    write(folder / "environment.sh", _filled("environment.sh"))
    write(folder / "supernode.sh", script, SCRIPT)
    service = _service("fedrbn-supernode.service", "FedRBN: SuperNode", "/opt/fedrbn/node", "supernode.sh")
    write(folder / "fedrbn-supernode.service", service)
    write(site.server / "keys" / f"{node.name}.pub", pair.public)


def _superlink_script(hosts: Sequence[str], port: int) -> bytes:
    return _filled("superlink.sh.j2", address=listens_on(hosts), port=port)


def _service(unit: str, description: str, folder: str, script: str) -> bytes:
    return _filled("service.j2", unit=unit, description=description, folder=folder, script=script)


def write(path: Path, content: bytes, mode: int = PLAIN) -> None:
    """Write a new file that never has broader permissions than its final ones, in folders only the owner can enter."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(handle, "wb") as file:
        os.fchmod(handle, mode)  # independent of the umask
        file.write(content)


def _replace(path: Path, content: bytes, mode: int) -> None:
    """Replace a file; the old one is kept next to it as NAME.old until the next replacement."""
    fresh = path.with_name(f".{path.name}.new")
    fresh.unlink(missing_ok=True)
    write(fresh, content, mode)
    if path.exists():
        path.replace(path.with_name(f"{path.name}.old"))
    fresh.replace(path)


def _in_address(host: str) -> str:
    """A host in the form used before `:port`: IPv6 addresses in brackets."""
    return f"[{host}]" if ":" in host else host


def _filled(template: str, **values: Any) -> bytes:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("fedrbn.deploy"),
        undefined=jinja2.StrictUndefined,
        autoescape=jinja2.select_autoescape(),
        keep_trailing_newline=True,
        trim_blocks=True,
    )
    return environment.get_template(template).render(values).encode()
