"""The commands for a federation on several machines: write a site's folder, renew keys, try it on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedrbn.cli.output import console, listed, print_json, say
from fedrbn.cli.run import Methods, as_folder
from fedrbn.errors import DeployError

if TYPE_CHECKING:
    from fedrbn.deploy.site import Node

app = typer.Typer(help="Deploy on several machines with Flower, TLS and authenticated nodes.", no_args_is_help=True)

Directory = Annotated[Path, typer.Argument(help="The site's folder.")]
Hosts = Annotated[
    str,
    typer.Option("--host", help="Names or addresses of the server, separated by commas; nodes connect to the first."),
]


@app.command()
def init(
    directory: Annotated[Path, typer.Argument(help="A new folder, which will hold private keys.")],
    host: Hosts = "localhost",
    port: Annotated[int, typer.Option(help="The port that the server listens on.")] = 9092,
    nodes: Annotated[
        int | None, typer.Option(help="Number of nodes, each with one user of the experiment's data.")
    ] = None,
    node: Annotated[
        list[str] | None,
        typer.Option(help="A node with its own data, as NAME=package.module:factory; repeat for several."),
    ] = None,
    config: Annotated[Path | None, typer.Option(help="A TOML file of settings for the training.")] = None,
) -> None:
    """Write everything a site needs: certificates, node keys, start scripts, systemd units, the Flower app, a README.

    Nothing is overwritten: the folder must be new or empty.
    """
    need_flower()
    from fedrbn import config as configs
    from fedrbn.deploy import site
    from fedrbn.federated.options import resolved

    experiment = resolved(configs.make(configs.read(config) if config else {}))
    plan = site.SitePlan(tuple(listed(host)), port, planned_nodes(nodes, node or []), experiment)
    site.create(directory, plan)
    say(f"wrote {directory} for {len(plan.nodes)} nodes; {directory / 'README.md'} says what to copy where")


@app.command()
def renew(
    directory: Directory,
    node: Annotated[str | None, typer.Option(help="Make a new key for this node.")] = None,
    server: Annotated[bool, typer.Option("--server", help="Make a new certificate for the server.")] = False,
    host: Annotated[
        str | None, typer.Option(help="With --server: use these hosts instead of the current ones.")
    ] = None,
) -> None:
    """Make a new key for one node, or a new certificate for the server; the site's README says what to do with it."""
    need_flower()
    from fedrbn.deploy import site

    if (node is not None) == server:
        raise DeployError("got --node and --server, or neither; expected one of them. Choose what to renew.")
    found = site.Site(directory)
    if node is not None:
        site.renew_node(found, node)
        say(f"new key of {node}: copy {found.node(node) / 'node.key'} to it, then run {found.server / 'register.sh'}")
    else:
        site.renew_server(found, listed(host or ""))
        say(
            f"new certificate in {found.server}: copy server.crt, server.key and superlink.sh to the server and "
            "restart the SuperLink"
        )


@app.command()
def demo(
    config_file: Annotated[Path, typer.Argument(help="A TOML file of settings.")],
    out: Annotated[Path, typer.Option(help="A new folder for the runs and the logs.")] = Path("runs/flower"),
    methods: Methods = "fedrbn",
    as_json: Annotated[bool, typer.Option("--json", help="Print the records as JSON instead of a table.")] = False,
) -> None:
    """Deploy on this machine: TLS, a SuperLink and one authenticated SuperNode for each client, as processes.

    Creates certificates and keys, trains, prints the accuracies, and stops all processes.
    """
    need_flower()
    from fedrbn import config
    from fedrbn.deploy.demo import deploy_and_train
    from fedrbn.evaluation.tables import comparison_table
    from fedrbn.federated.assemble import assemble
    from fedrbn.federated.options import resolved

    values = config.read(config_file)
    experiments = {
        as_folder(method): resolved(config.make(config.with_settings(values, [("method", "name", method)])))
        for method in listed(methods)
    }
    clients = len(assemble(next(iter(experiments.values()))).plan.members)
    records = deploy_and_train(experiments, clients, out, say)
    if as_json:
        print_json({name: record.to_json() for name, record in records.items()})
    else:
        console().print(comparison_table({name: [record] for name, record in records.items()}))
    say(f"runs and logs: {out}")


def planned_nodes(number: int | None, described: list[str]) -> tuple[Node, ...]:
    """The nodes that the options ask for."""
    from fedrbn.deploy.site import RUNTIME_PORT, Node
    from fedrbn.errors import DeployError

    if (number is None) == (not described):
        raise DeployError("got --nodes and --node, or neither; expected one of them. To try it out, use --nodes 4.")
    if number is not None:
        return tuple(Node(f"node-{i}", partition=i, port=RUNTIME_PORT + i) for i in range(number))
    named = [text.partition("=") for text in described]
    return tuple(Node(n, data=data or None, port=RUNTIME_PORT + i) for i, (n, _, data) in enumerate(named))


def need_flower() -> None:
    """Raise an error that says how to install Flower, if it is missing."""
    from importlib.util import find_spec

    from fedrbn.config import ConfigError

    if find_spec("flwr") is None:
        raise ConfigError("got no Flower; expected flwr 1.41.0. Install it with pip install 'fedrbn[flower]'.")
