"""A site: its own data, its network and its memory. Nothing here leaves the machine.

A site's own data come from `package.module:factory` in its node config: a function of the node config that returns
`SiteData`. Without it, a site uses its part of the data set that the server names, which is meant for trials.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import cast

import safetensors
import safetensors.torch
from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from fedrbn.config import DataConfig, Experiment, FederationConfig, RunConfig, plugins
from fedrbn.data.federation import build as build_federation
from fedrbn.data.samples import Client, Federation, Samples
from fedrbn.errors import ConfigError
from fedrbn.federated.aggregation.layout import Layout, layout
from fedrbn.federated.assemble import build_network, load_data
from fedrbn.files import write_atomically
from fedrbn.flower import wire
from fedrbn.flower.instructions import Setup, method_of
from fedrbn.flower.settings import NodeConfig, Values
from fedrbn.hardware import pick_device
from fedrbn.nets.dual_bn import DualNet
from fedrbn.nets.fast import fast
from fedrbn.nets.state import tensors
from fedrbn.types import Member, Role, Tensors


@dataclass(frozen=True)
class SiteData:
    """The labelled images of one site, in three parts that share no image."""

    domain: str
    classes: tuple[str, ...]
    train: Samples
    validation: Samples
    test: Samples
    label: str | None = None
    """The domain's name in tables, if it differs."""
    augment: bool = False
    """Whether training images are flipped and rotated at random."""


def local_federation(node: NodeConfig, values: Values, setup: Setup) -> Federation:
    """This site as a federation of one client; the server decides its role."""
    if node.data is not None:
        return _own(node, values)
    if node.partition_id is None:
        raise ConfigError(
            "got a node config without data; expected data='package.module:factory' with a name, or partition-id for "
            "a part of the server's data set. Set one in --node-config of this SuperNode."
        )
    everybody = _divided(setup.data, setup.federation, setup.seed)
    if node.partition_id >= len(everybody.clients):
        raise ConfigError(
            f"got partition-id {node.partition_id}; expected 0 to {len(everybody.clients) - 1}, because the data set "
            f"is divided among {len(everybody.clients)} users. Start fewer nodes, or raise federation.users_per_domain."
        )
    client = everybody.clients[node.partition_id]
    return replace(everybody, clients=(client,), domains=(client.domain,))


def parts(setup: Setup) -> tuple[Member, ...]:
    """The users that the server's data set is divided among, in the order of partition-id; without roles."""
    divided = _divided(setup.data, setup.federation, setup.seed)
    return tuple(Member(user.id, user.domain, Role.ST.duty, len(user.train)) for user in divided.clients)


@lru_cache(maxsize=2)  # a simulation requests many parts in the same process
def _divided(data: DataConfig, federation: FederationConfig, seed: int) -> Federation:
    return build_federation(load_data(data), federation, seed)


def _own(node: NodeConfig, values: Values) -> Federation:
    reference = cast(str, node.data)
    if node.name is None:
        raise ConfigError("got data of a site without a name; expected name='hospital-3' in its node config.")
    found = plugins.resolve(reference)
    made = cast(Callable[[Values], object], found)(values) if callable(found) else found
    if not isinstance(made, SiteData):
        raise ConfigError(
            f"got {reference!r}, which gives {type(made).__name__}; expected fedrbn.flower.site.SiteData, or a "
            "function of the node config that returns it."
        )
    client = Client(node.name, made.domain, Role.ST, made.train, made.validation, made.test, made.augment)
    labels = {made.domain: made.label or made.domain}
    return Federation((client,), (made.domain,), labels, made.classes, equal_sizes=False)


def network(node: NodeConfig, setup: Setup, federation: Federation) -> DualNet:
    """The network that the server names, for this site's images and classes."""
    experiment = Experiment(model=setup.model, run=RunConfig(seed=setup.seed))
    net = build_network(experiment, method_of(setup), len(federation.classes), federation.image_shape)
    place = pick_device(node.device)
    return fast(net) if setup.fast and place.type == "cpu" else net.to(place)


def fingerprint(net: DualNet, names: Layout) -> str:
    """Sixty-four hex digits that identify a network's tensors and which are shared; both sides must have the same."""
    lines = [
        f"{name} {tuple(tensor.shape)} {tensor.dtype} {name in names.shared} {name in names.noised}"
        for name, tensor in sorted(tensors(net).items())
    ]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


@dataclass(frozen=True)
class SiteMemory:
    """A client's memory of a run: its own batch norm, in Flower's state and on disk, and what its method remembers.

    Flower's state lives as long as the SuperNode; the disk also survives its restart.
    """

    folder: Path
    """The folder of this run, for all clients on this machine."""
    client: str

    @classmethod
    def of(cls, node: NodeConfig, setup: Setup, client: str) -> SiteMemory:
        """The memory of a client for a run."""
        return cls(node.state_folder() / setup.token, client)

    @property
    def store(self) -> Path:
        """The folder for what methods remember; see `fedrbn.federated.training.memory`."""
        return self.folder / "memory"

    def keep(self, state: RecordDict, finished: int, personal: Tensors) -> None:
        """Store the client's batch norm after this many rounds."""
        record = wire.packed(personal)
        state["personal"] = record
        state["finished"] = ConfigRecord({"rounds": finished})
        self._file.parent.mkdir(parents=True, exist_ok=True)
        content = {name: tensor.contiguous() for name, tensor in personal.items()}
        write_atomically(self._file, safetensors.torch.save(content, metadata={"rounds": str(finished)}))

    def recall(self, state: RecordDict) -> tuple[int, ArrayRecord] | None:
        """(rounds, batch norm) as stored; None if there is none or it cannot be read."""
        record, finished = state.get("personal"), state.get("finished")
        if isinstance(record, ArrayRecord) and isinstance(finished, ConfigRecord):
            return cast(int, finished["rounds"]), record
        try:
            with safetensors.safe_open(self._file, framework="pt") as file:
                rounds = int((file.metadata() or {})["rounds"])
                return rounds, wire.packed({key: file.get_tensor(key) for key in file.keys()})  # noqa: SIM118
        except (OSError, KeyError, ValueError, safetensors.SafetensorError):
            return None

    @property
    def _file(self) -> Path:
        return self.folder / self.client / "batch-norm.safetensors"


def names_of(net: DualNet, setup: Setup) -> Layout:
    """Which tensors are shared and which stay local."""
    return layout(net, method_of(setup).local)
