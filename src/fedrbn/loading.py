"""A trained federation as networks: one ready for each client, and one for somebody new."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from fedrbn import nets, plugins
from fedrbn.attacks import from_config
from fedrbn.config import Experiment
from fedrbn.federated.aggregation import Contribution, mean
from fedrbn.federated.methods import Method, configure
from fedrbn.federated.server import predicting_branch
from fedrbn.nets.dual_bn import DualNet, plain
from fedrbn.nets.dual_bn import load as load_tensors
from fedrbn.storage import RunDirectory, StorageError
from fedrbn.types import Branch, Member, ServerState


@dataclass(frozen=True)
class Trained:
    """The state that validation chose, ready to be turned into networks."""

    experiment: Experiment
    members: tuple[Member, ...]
    classes: tuple[str, ...]
    image_shape: tuple[int, int, int]
    state: ServerState
    method: Method

    def client(self, client: str, branch: Branch | None = None) -> nn.Module:
        """An ordinary network in eval mode, pixels in [0, 1] to logits, for one client.

        Without `branch` it is the one the client predicts with.
        """
        member = next((m for m in self.members if m.id == client), None)
        if member is None:
            raise plugins.unknown("client", client, [m.id for m in self.members])
        net = self.dual_client(client)
        return plain(net, branch or predicting_branch(self.state, member, self.members, self.method))

    def dual_client(self, client: str) -> DualNet:
        """The client's network with all its branches."""
        net = self._network()
        load_tensors(net, self.state.shared)
        load_tensors(net, self.state.personal[client])
        return net

    def newcomer(self, branch: Branch | None = None) -> nn.Module:
        """An ordinary network for somebody who never took part: the shared weights with everybody's mean batch norm."""
        net = self._network()
        load_tensors(net, self.state.shared)
        first = next(iter(self.state.personal.values()))
        floats = {name: tensor for name, tensor in first.items() if tensor.is_floating_point()}
        load_tensors(
            net,
            mean(
                floats,
                (
                    Contribution(m.id, {name: self.state.personal[m.id][name] for name in floats}, m.samples)
                    for m in self.members
                    if m.id in self.state.reported
                ),
            ),
        )
        predicts = {predicting_branch(self.state, m, self.members, self.method) for m in self.members}
        return plain(net, branch or (self.method.predict if self.method.predict in predicts else Branch.CLEAN))

    def _network(self) -> DualNet:
        model = self.experiment.model
        built = nets.build(model.name, len(self.classes), model.width, self.image_shape, self.experiment.run.seed)
        return self.method.network(built)


def load(path: str | Path) -> Trained:
    """Open a run directory that has been trained: `load("runs/demo").client("plain-0")(pixels)`."""
    directory = RunDirectory.open(Path(path))
    experiment = directory.experiment()
    chosen = directory.checkpoint("best") or directory.checkpoint("last")
    if chosen is None:
        raise StorageError(f"got run {path} without a checkpoint; expected a trained one. Run or resume it first.")
    members, classes, image_shape = directory.description()
    method = configure(experiment.method, from_config(experiment.attack))
    trained = Trained(experiment, members, classes, image_shape, chosen.state, method)
    missing = {m.id for m in members} - chosen.state.personal.keys()
    if missing:
        raise StorageError(f"got a checkpoint without client {sorted(missing)[0]!r}; expected all {len(members)} clients.")
    with torch.no_grad():
        trained.dual_client(members[0].id)  # a checkpoint of another network is refused here, not at the first use
    return trained
