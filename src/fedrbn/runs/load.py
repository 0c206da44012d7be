"""A trained federation as networks: one for each client, and one for new clients."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table
from torch import nn

from fedrbn.attacks import from_config
from fedrbn.config import Experiment, plugins
from fedrbn.data.samples import Client
from fedrbn.errors import StorageError
from fedrbn.evaluation.results import html
from fedrbn.evaluation.tables import BRANCH
from fedrbn.federated.aggregation.layout import layout
from fedrbn.federated.aggregation.mean import Contribution, mean
from fedrbn.federated.assemble import build_network
from fedrbn.federated.client import adapt
from fedrbn.federated.options import configure
from fedrbn.federated.prediction import predicting_branch
from fedrbn.federated.protocol import ServerState
from fedrbn.federated.server import Plan, round_of
from fedrbn.nets import NetworkSource
from fedrbn.nets.dual_bn import DualNet, plain
from fedrbn.nets.state import load as load_tensors
from fedrbn.runs.directory import RunDirectory
from fedrbn.types import Branch, Member, Role, Tensors


@dataclass(frozen=True, repr=False)
class Trained:
    """The state that validation chose, ready to be turned into networks."""

    experiment: Experiment
    classes: tuple[str, ...]
    image_shape: tuple[int, int, int]
    plan: Plan
    state: ServerState
    net: DualNet
    """The network's structure; every client's network is a copy of it with its own weights."""

    def __repr__(self) -> str:
        roles = [member.role for member in self.plan.members]
        return (
            f"Trained({self.plan.method.name!r} on {self.experiment.data.name!r}: {len(roles)} clients, "
            f"{roles.count(Role.AT)} AT and {roles.count(Role.ST)} ST, round {self.state.round})"
        )

    def table(self) -> Table:
        """Every client: its domain, its role, its training images, and the branch that it predicts with."""
        table = Table("client", "domain", "role", "training images", "predicts with", title=repr(self))
        for member in self.plan.members:
            branch = predicting_branch(self.plan, self.state, member)
            table.add_row(member.id, member.domain, member.role.value, str(member.samples), BRANCH[branch.value])
        return table

    def _repr_html_(self) -> str:
        return html(self.table())

    @property
    def clients(self) -> tuple[str, ...]:
        """The ids of all clients."""
        return tuple(member.id for member in self.plan.members)

    def client(self, client: str, branch: Branch | None = None) -> nn.Module:
        """An ordinary network in eval mode, pixels in [0, 1] to logits, for one client.

        Without `branch` it uses the branch that the client predicts with. A method that adapts before evaluation
        (fatmeta) needs the client's data for that: see `adapted`.
        """
        net = self.dual_client(client)
        member = self.plan.members[self.clients.index(client)]
        return plain(net, branch or predicting_branch(self.plan, self.state, member))

    def dual_client(self, client: str) -> DualNet:
        """The client's network with all its branches: net(x, Branch.NOISED)."""
        if client not in self.clients:
            raise plugins.unknown("client", client, self.clients, own=False)
        return self._network(self.state.personal[client])

    def adapted(self, client: Client) -> DualNet:
        """The client's network as it was evaluated: after one local step on its own data, if the method adapts."""
        net = self.dual_client(client.id)
        adapt(net, client, round_of(self.state, self.plan))
        return net

    def average(self) -> DualNet:
        """The network that new clients start from: the shared weights with mean batch norm (BN_a: of AT users)."""
        reported = [member for member in self.plan.members if member.id in self.state.reported]
        own, noised = self.state.personal, self.plan.names.noised
        floats = {name: value for name, value in own[reported[0].id].items() if value.is_floating_point()}

        def contribution(member: Member) -> Contribution:
            kept = {name: own[member.id][name] for name in floats if member.role is Role.AT or name not in noised}
            return Contribution(member.id, kept, member.samples)

        return self._network(mean(floats, (contribution(member) for member in reported)))

    def newcomer(self, branch: Branch | None = None) -> nn.Module:
        """`average` as an ordinary network, for a client that never trained; `fedrbn onboard` makes a better one."""
        return plain(self.average(), branch or self.newcomer_branch)

    @property
    def newcomer_branch(self) -> Branch:
        """The branch that a new client predicts with: the method's, if any client has it."""
        predicts = {predicting_branch(self.plan, self.state, member) for member in self.plan.members}
        return self.plan.method.predict if self.plan.method.predict in predicts else Branch.CLEAN

    def _network(self, personal: Tensors) -> DualNet:
        net = copy.deepcopy(self.net)
        load_tensors(net, self.state.shared)
        load_tensors(net, personal)
        return net.eval()


def load(path: str | Path, network: NetworkSource | None = None) -> Trained:
    """Open a run directory that has been trained: `load("runs/demo").client("plain-0")(pixels)`.

    `network` is needed if the run's network was passed as an object.
    """
    directory = RunDirectory.open(Path(path))
    experiment = directory.experiment()
    chosen = directory.checkpoint("best") or directory.checkpoint("last")
    if chosen is None:
        raise StorageError(f"got run {path} without a checkpoint; expected a trained one. Run or resume it first.")
    members, classes, image_shape = directory.description()
    missing = sorted({member.id for member in members} - chosen.state.personal.keys())
    if missing:
        raise StorageError(f"got a checkpoint without client {missing[0]!r}; expected all {len(members)} clients.")
    method = configure(experiment.method, from_config(experiment.attack))
    net = build_network(experiment, method, len(classes), image_shape, network)
    names = layout(net, method.local)
    plan = Plan(members, method, names, experiment.train, experiment.run.seed, faults=experiment.faults)
    trained = Trained(experiment, classes, image_shape, plan, chosen.state, net)
    trained.dual_client(members[0].id)  # refuses a checkpoint of another network here, not at first use
    return trained
