"""What `fedrbn deploy init` and `renew` write: the files, their modes, and what is refused."""

from __future__ import annotations

import os
import stat
import subprocess
import tomllib
from pathlib import Path

import pytest
from cryptography import x509
from typer.testing import CliRunner

from fedrbn import config
from fedrbn.cli import app
from fedrbn.deploy.site import Node, Site, SitePlan, create, renew_node, renew_server
from fedrbn.errors import DeployError

SERVER = [
    "app/pyproject.toml",
    "ca.crt",
    "environment.sh",
    "experiment.toml",
    "fedrbn-superlink.service",
    "flwr.sh",
    "keys/a.pub",
    "keys/b.pub",
    "register.sh",
    "run.sh",
    "server.crt",
    "server.key",
    "superlink.sh",
]
EVERY_ADDRESS = "0.0.0.0"  # noqa: S104
NODE = ["ca.crt", "environment.sh", "fedrbn-supernode.service", "node.key", "node.toml", "supernode.sh"]
LAYOUT = sorted(
    ["README.md", "authority/ca.crt", "authority/ca.key", "site.toml"]
    + [f"server/{name}" for name in SERVER]
    + [f"nodes/{node}/{name}" for node in ("a", "b") for name in NODE]
)


def plan(*nodes: Node) -> SitePlan:
    chosen = nodes or (Node("a", partition=0), Node("b", data="my_site.images:factory", port=9095))
    return SitePlan(("fed.example.org", "192.0.2.7"), 9092, chosen, config.make({}))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    before = os.umask(0)  # the loosest: modes must not depend on it
    try:
        return create(tmp_path_factory.mktemp("deploy") / "site", plan())
    finally:
        os.umask(before)


def files(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_layout(site: Site) -> None:
    assert files(site.root) == LAYOUT


def test_private_keys_are_the_owners_alone(site: Site) -> None:
    secret = [path for path in site.root.rglob("*") if path.is_file() and b"PRIVATE KEY" in path.read_bytes()]
    assert {str(path.relative_to(site.root)) for path in secret} == {
        "authority/ca.key",
        "server/server.key",
        "nodes/a/node.key",
        "nodes/b/node.key",
    }
    assert {mode(path) for path in secret} == {0o600}
    assert {mode(path) for path in (site.root, *site.root.rglob("*")) if path.is_dir()} == {0o700}


def test_scripts_can_be_run_and_are_valid(site: Site) -> None:
    scripts = [path for path in site.root.rglob("*.sh") if path.name != "environment.sh"]
    assert len(scripts) == 6  # superlink, flwr, register, run, and one for each of two nodes
    for script in (*scripts, site.server / "environment.sh"):
        subprocess.run(["sh", "-n", script], check=True)
    assert {mode(path) for path in scripts} == {0o755}


def test_facts_are_read_back(site: Site) -> None:
    assert (site.hosts, site.port, site.names) == (("fed.example.org", "192.0.2.7"), 9092, ("a", "b"))


def test_node_files_say_what_was_asked(site: Site) -> None:
    configs = [tomllib.loads((site.node(name) / "node.toml").read_text()) for name in ("a", "b")]
    assert configs == [{"partition-id": 0}, {"name": "b", "data": "my_site.images:factory"}]
    assert "--superlink fed.example.org:9092 " in (site.node("a") / "supernode.sh").read_text()
    ports = [(site.node(name) / "supernode.sh").read_text().split("--port ")[1].strip() for name in ("a", "b")]
    assert ports == ["9094", "9095"]


def test_a_node_is_started_again_however_it_ended(site: Site) -> None:
    """Flower ends a node with exit code 0 when its clock is wrong, as it may be until the network is up."""
    for unit in (site.node("a") / "fedrbn-supernode.service", site.server / "fedrbn-superlink.service"):
        assert "Restart=always" in unit.read_text().splitlines()


@pytest.mark.parametrize(
    ("hosts", "address"),
    [
        (("localhost",), "127.0.0.1"),
        (("localhost", "127.0.0.1"), "127.0.0.1"),
        (("localhost", "192.0.2.7"), EVERY_ADDRESS),
        (("fed.example.org",), EVERY_ADDRESS),
    ],
)
def test_a_server_on_localhost_is_closed_to_other_machines(
    tmp_path: Path, hosts: tuple[str, ...], address: str
) -> None:
    made = create(tmp_path / "site", SitePlan(hosts, 9092, (Node("a"),), config.make({})))
    assert f"--host {address} --port 9092 " in (made.server / "superlink.sh").read_text()
    assert ("listens on 127.0.0.1 only" in (made.root / "README.md").read_text()) == (address == "127.0.0.1")


def test_a_new_host_opens_the_server_to_other_machines(tmp_path: Path) -> None:
    made = create(tmp_path / "site", SitePlan(("localhost",), 9092, (Node("a"),), config.make({})))
    renew_server(made)
    assert not (made.server / "superlink.sh.old").exists()
    renew_server(made, ["fed.example.org"])
    assert f"--host {EVERY_ADDRESS} --port 9092 " in (made.server / "superlink.sh").read_text()
    assert mode(made.server / "superlink.sh") == 0o755


def test_an_ipv6_server_is_written_in_brackets(tmp_path: Path) -> None:
    made = create(tmp_path / "six", SitePlan(("fd00::2",), 9092, (Node("a"),), config.make({})))
    assert "--superlink [fd00::2]:9092 " in (made.node("a") / "supernode.sh").read_text()


def test_app_and_experiment_are_valid(site: Site) -> None:
    app_config = tomllib.loads((site.server / "app" / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    assert app_config["flower"]["nodes"] == 2
    assert config.from_toml((site.server / "experiment.toml").read_text()) == config.make({})


def test_readme_names_every_node_and_the_port(site: Site) -> None:
    text = (site.root / "README.md").read_text()
    assert all(words in text for words in ("nodes/a/", "nodes/b/", "fed.example.org:9092", "9092/tcp"))


def test_nothing_is_overwritten(site: Site) -> None:
    before = {name: (site.root / name).read_bytes() for name in files(site.root)}
    with pytest.raises(DeployError, match="already exists"):
        create(site.root, plan())
    assert {name: (site.root / name).read_bytes() for name in files(site.root)} == before


def test_a_failure_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedrbn.deploy.site.make_node_key", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        create(tmp_path / "site", plan())
    assert list(tmp_path.iterdir()) == []


def test_an_empty_directory_is_used(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    assert files(create(tmp_path / "site", plan()).root) == LAYOUT


@pytest.mark.parametrize("name", ["", "../a", "a/b", ".a", "-a", "a b", "ä", "superlink"])
def test_node_names_that_are_no_folder_names_are_refused(name: str) -> None:
    with pytest.raises(DeployError, match="node name"):
        Node(name)


@pytest.mark.parametrize(
    ("hosts", "port", "nodes", "words"),
    [
        ((), 9092, (Node("a"),), "no host"),
        (("h",), 0, (Node("a"),), "port 0"),
        (("h",), 9092, (), "no nodes"),
        (("h",), 9092, (Node("a"), Node("a")), "several nodes named a"),
        (("https://h",), 9092, (Node("a"),), "expected a DNS name"),
    ],
)
def test_plans_that_cannot_work_are_refused(
    hosts: tuple[str, ...], port: int, nodes: tuple[Node, ...], words: str
) -> None:
    with pytest.raises((DeployError, ValueError), match=words):
        SitePlan(hosts, port, nodes, config.make({}))


def test_renewing_a_node_changes_its_two_files_only(tmp_path: Path) -> None:
    site = create(tmp_path / "site", plan())
    before = {name: (site.root / name).read_bytes() for name in files(site.root)}
    renew_node(site, "a")
    after = {name: (site.root / name).read_bytes() for name in files(site.root)}
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"nodes/a/node.key", "server/keys/a.pub"}
    assert after["nodes/a/node.key.old"] == before["nodes/a/node.key"]
    assert mode(site.node("a") / "node.key") == mode(site.node("a") / "node.key.old") == 0o600


def test_old_keys_are_not_registered(tmp_path: Path) -> None:
    site = create(tmp_path / "site", plan())
    renew_node(site, "a")
    assert sorted(path.name for path in (site.server / "keys").glob("*.pub")) == ["a.pub", "b.pub"]


def test_renewing_the_server_keeps_its_hosts(tmp_path: Path) -> None:
    site = create(tmp_path / "site", plan())
    before = (site.server / "server.key").read_bytes()
    renew_server(site)
    certificate = x509.load_pem_x509_certificate((site.server / "server.crt").read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(name.value) for name in names][:2] == ["fed.example.org", "192.0.2.7"]
    assert (site.server / "server.key").read_bytes() != before
    assert mode(site.server / "server.key") == 0o600


def test_renewing_without_the_authority_says_what_is_missing(tmp_path: Path) -> None:
    site = create(tmp_path / "site", plan())
    (site.authority / "ca.key").unlink()
    with pytest.raises(DeployError, match="expected the authority's key"):
        renew_server(site)


def test_renewing_an_unknown_node_or_no_site(site: Site, tmp_path: Path) -> None:
    with pytest.raises(DeployError, match="got node 'c'; expected one of a, b"):
        renew_node(site, "c")
    with pytest.raises(DeployError, match="is not a site"):
        renew_node(Site(tmp_path), "a")


def test_commands(tmp_path: Path) -> None:
    runner, path = CliRunner(), str(tmp_path / "site")
    made = runner.invoke(app, ["deploy", "init", path, "--nodes", "2", "--host", "fed.example.org,192.0.2.7"])
    assert made.exit_code == 0, made.output
    assert Site(tmp_path / "site").names == ("node-0", "node-1")
    assert Site(tmp_path / "site").hosts == ("fed.example.org", "192.0.2.7")
    renewed = runner.invoke(app, ["deploy", "renew", path, "--node", "node-1"])
    assert renewed.exit_code == 0, renewed.output
    assert (tmp_path / "site/nodes/node-1/node.key.old").exists()
    assert runner.invoke(app, ["deploy", "renew", path, "--server"]).exit_code == 0
    for wrong in (["init", path, "--nodes", "2"], ["init", str(tmp_path / "x")], ["renew", path]):
        assert isinstance(runner.invoke(app, ["deploy", *wrong]).exception, DeployError)


def test_command_for_sites_with_own_data(tmp_path: Path) -> None:
    options = ["--node", "clinic=my_site:images", "--node", "ward"]
    made = CliRunner().invoke(app, ["deploy", "init", str(tmp_path / "site"), *options])
    assert made.exit_code == 0, made.output
    written = tomllib.loads((tmp_path / "site/nodes/clinic/node.toml").read_text())
    assert written == {"name": "clinic", "data": "my_site:images"}
