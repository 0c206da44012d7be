"""Builds everything that an experiment names: data, clients, attack, method, network."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from fedrbn import nets
from fedrbn.attacks import Attack, LogitsAttack, Untargeted, from_config
from fedrbn.config import DataConfig, Experiment, FederationConfig, ModelConfig, plugins
from fedrbn.data import load
from fedrbn.data.digests import digest_of, digest_of_all
from fedrbn.data.federation import build as build_federation
from fedrbn.data.samples import DataSet, Federation
from fedrbn.errors import ConfigError
from fedrbn.federated import memory_need
from fedrbn.federated.aggregation.layout import layout
from fedrbn.federated.aggregation.rules import aggregation
from fedrbn.federated.executors.host import ClientHost
from fedrbn.federated.executors.malice import from_config as malice_of
from fedrbn.federated.executors.processes import processes
from fedrbn.federated.executors.sendable import unsendable
from fedrbn.federated.executors.serial import in_this_process
from fedrbn.federated.methods import Method
from fedrbn.federated.options import configure, with_method_options
from fedrbn.federated.prepared_experiment import Outline
from fedrbn.federated.privacy.mechanism import from_config as privacy_of
from fedrbn.federated.protocol import Execute, ServerState
from fedrbn.federated.server import Plan
from fedrbn.hardware import cores, pick_device, pick_precision
from fedrbn.nets.dual_bn import DualNet, set_momentum
from fedrbn.nets.fast import fast
from fedrbn.nets.precision import in_precision
from fedrbn.types import Duty, Member, Role


@dataclass(frozen=True)
class Assembly:
    """Everything that a run needs. `experiment` is resolved: the method's defaults are filled in."""

    experiment: Experiment
    federation: Federation
    attack: Attack
    net: DualNet
    plan: Plan
    workers: int
    trained_in: Literal["bfloat16", "float32"] | None = None
    """The precision of the earlier rounds of a resumed run; None follows the settings."""

    hints: tuple[str, ...] = ()
    """Why clients do not run as requested, if so."""

    @property
    def precision(self) -> torch.dtype | None:
        """The data type that training computes in, if it is not float32."""
        wanted: Literal["auto", "bfloat16"] | None = self.experiment.run.precision
        if self.trained_in is not None:
            wanted = "bfloat16" if self.trained_in == "bfloat16" else None
        return pick_precision(wanted, self.net.device)

    @property
    def adversary(self) -> LogitsAttack:
        """The attack of the config, as evaluation calls it."""
        return Untargeted(self.attack)

    @property
    def outline(self) -> Outline:
        """What the server knows about the data."""
        return Outline(
            self.federation.classes,
            self.federation.image_shape,
            self.federation.labels,
            validation=any(len(client.validation) for client in self.federation.clients),
        )

    @property
    def forgiving(self) -> bool:
        """False: every local client can be evaluated, so a failure is a bug."""
        return False

    def record_extras(self, state: ServerState) -> dict[str, Any]:  # noqa: ARG002
        """Nothing: local clients are trusted."""
        return {}

    def with_plan(self, plan: Plan) -> Assembly:
        """The same experiment with another plan."""
        return replace(self, plan=plan)

    def samples_digest(self) -> str:
        """Twelve hex digits that identify the test samples of all clients and their order."""
        return digest_of_all((client.id, digest_of(client.test)) for client in self.federation.clients)

    def executor(self, store: Path | None = None) -> AbstractContextManager[Execute]:
        """Where the clients run: this process for one worker, else worker processes. `store` is for their memory."""
        net = fast(self.net) if self.experiment.run.fast and self.net.device.type == "cpu" else self.net
        net = in_precision(net, self.precision)
        clients = {client.id: client for client in self.federation.clients}
        malice = malice_of(self.experiment, self.plan.members, self.plan.names.batch_norms)
        if malice is not None:
            clients = malice.data(clients, len(self.federation.classes))
        host = ClientHost(clients, net, store, privacy_of(self.experiment))
        here = self.workers == 1 and self.experiment.faults.deadline_seconds is None  # only processes can be stopped
        place = in_this_process(host) if here else processes(host, self.workers)
        return place if malice is None else malice.among(place)


def assemble(
    experiment: Experiment, network: nets.NetworkSource | None = None, data: DataSet | Federation | None = None
) -> Assembly:
    """Load the data, divide it among clients, build attack, method and network; invalid settings fail here.

    `network` and `data`, if given, replace what the experiment names. The network can be a module or a function that
    makes one, such as its class. A ready-made federation is already divided: of [federation] only `at` and
    `participants` apply to it.
    """
    if network is not None:
        experiment = experiment.model_copy(update={"model": ModelConfig(name=plugins.GIVEN)})
    if data is not None:
        experiment = experiment.model_copy(update={"data": DataConfig(name=plugins.GIVEN)})
    if isinstance(data, Federation):
        own = FederationConfig(**experiment.federation.model_dump(include={"at", "participants", "duties", "replan"}))
        experiment = experiment.model_copy(update={"federation": own})
    attack = from_config(experiment.attack)
    method = configure(experiment.method, attack)
    experiment = with_method_options(experiment, method)
    device = pick_device(experiment.run.device)
    source = load_data(experiment.data) if data is None else data
    federation = build_federation(source, experiment.federation, experiment.run.seed)
    members = tuple(Member(c.id, c.domain, duty_of(experiment, c.id, c.role), len(c.train)) for c in federation.clients)
    workers = _workers(experiment, device.type, len(members))
    classes, shape = len(federation.classes), federation.image_shape
    if network is None and device.type == "cpu":
        _ensure_weights_fit(experiment.model, classes, shape, workers)
    net = build_network(experiment, method, classes, shape, network).to(device)
    method.check(net, shape)
    alone = _only_here(experiment, workers, net, method, attack)
    return Assembly(
        experiment=experiment,
        federation=federation,
        attack=attack,
        net=net,
        plan=build_plan(experiment, method, net, members, federation.equal_sizes),
        workers=1 if alone else workers,
        hints=alone,
    )


def duty_of(experiment: Experiment, client: str, role: Role) -> Duty:
    """A client's duty: the planned one, or the default of its role."""
    planned = experiment.federation.duties
    return role.duty if planned is None else planned.clients[client].duty


def build_plan(
    experiment: Experiment, method: Method, net: DualNet, members: tuple[Member, ...], equal_sizes: bool
) -> Plan:
    """The server's plan for these members and this experiment."""
    participants = _participants(experiment, len(members))
    return Plan(
        members=members,
        method=method,
        names=layout(net, method.local),
        train=experiment.train,
        seed=experiment.run.seed,
        participants=participants,
        equal_sizes=equal_sizes,
        aggregate=aggregation(experiment, method, participants or len(members)),
        faults=experiment.faults,
    )


def build_network(
    experiment: Experiment,
    method: Method,
    classes: int,
    image_shape: tuple[int, int, int],
    network: nets.NetworkSource | None = None,
) -> DualNet:
    """The network that the experiment names, or the given one, in the form that the method trains."""
    model = experiment.model
    source = model.name if network is None else network
    made = method.network(nets.build(source, classes, model.width, image_shape, experiment.run.seed))
    if experiment.model.momentum is not None:
        set_momentum(made, experiment.model.momentum)
    return made


def load_data(config: DataConfig) -> DataSet | Federation:
    """The data and domains that a config names."""
    loaded = load(config.name, config.image_size)
    return loaded if config.domains is None else loaded.only(config.domains)


def _participants(experiment: Experiment, members: int) -> int | None:
    wanted = experiment.federation.participants
    if isinstance(wanted, float):
        return max(1, round(wanted * members))
    if wanted is not None and wanted > members:
        raise ConfigError(
            f"got federation.participants = {wanted}; expected at most the {members} users, or a share such as 0.5."
        )
    return wanted


def _workers(experiment: Experiment, device: str, members: int) -> int:
    """One process per core by default; an accelerator is used only from this process."""
    if device != "cpu":
        if (experiment.run.workers or 1) > 1:
            raise ConfigError(
                f"got run.workers = {experiment.run.workers} with run.device = {device!r}; expected 1 worker: several "
                "processes would share one accelerator. Leave run.workers out."
            )
        if experiment.faults.deadline_seconds is not None:
            raise ConfigError(
                f"got faults.deadline_seconds = {experiment.faults.deadline_seconds:g} with run.device = {device!r}; "
                "expected no deadline: clients share this process's accelerator and cannot be stopped one by one. "
                "Leave it out."
            )
        return 1
    return experiment.run.workers or min(cores(), members)


def _ensure_weights_fit(model: ModelConfig, classes: int, image_shape: tuple[int, int, int], workers: int) -> None:
    """Raise an error if the network does not fit into memory, before it is built."""
    size = nets.state_bytes(model.name, classes, model.width, image_shape)
    if size is None:
        return
    memory_need.ensure_fits(
        memory_need.of_weights(size, workers),
        f"network {model.name!r} for images of {image_shape[1]} x {image_shape[2]} pixels ({size / 1e6:,.0f} MB of "
        f"weights) with {workers} worker(s)",
        "Set data.image_size = 64, or model.name = 'resnet18', whose size does not depend on the image size, or a "
        "smaller model.width; or use fewer workers (run.workers).",
    )


def _only_here(experiment: Experiment, workers: int, *parts: object) -> tuple[str, ...]:
    """A hint if clients must run in this process because some of their code cannot be sent to another one."""
    limit = experiment.faults.deadline_seconds
    why = unsendable(*parts) if workers > 1 or limit is not None else None
    if why is None:
        return ()
    remedy = "To use several processes, move the code to a module and import it from there."
    if limit is not None:
        raise ConfigError(
            f"got faults.deadline_seconds = {limit:g} with {why}; expected code that worker processes can import, "
            f"because only worker processes can be stopped. {remedy}"
        )
    return (f"clients run in this process, because of {why}. {remedy}",)
