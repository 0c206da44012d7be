"""An experiment with everything built that it names: data, clients, attack, method, network."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from torch import nn

from fedrbn import nets, plugins
from fedrbn.attacks import Attack, LogitsAttack, Untargeted, from_config
from fedrbn.config import ConfigError, DataConfig, Experiment, FederationConfig, MethodConfig, ModelConfig, TrainConfig
from fedrbn.data import load
from fedrbn.data.federation import build as build_federation
from fedrbn.data.samples import DataSet, Federation
from fedrbn.federated.aggregation import Aggregate, Slack, layout, mean
from fedrbn.federated.executors import Site, processes, serial
from fedrbn.federated.methods import Method
from fedrbn.federated.options import configure, settings
from fedrbn.federated.server import Plan
from fedrbn.hardware import cores, pick_device
from fedrbn.nets.dual_bn import DualNet
from fedrbn.types import Execute, Member

AGGREGATIONS: dict[str, Aggregate] = {"mean": mean, "slack": Slack()}


@dataclass(frozen=True)
class Assembly:
    """What a run works with. `experiment` is resolved: the method's own options are filled in."""

    experiment: Experiment
    federation: Federation
    attack: Attack
    net: DualNet
    plan: Plan
    workers: int

    @property
    def adversary(self) -> LogitsAttack:
        """The attack of the config, as evaluation calls it."""
        return Untargeted(self.attack)

    def executor(self, store: Path | None = None) -> AbstractContextManager[Execute]:
        """Where the clients run: this process for one worker, else worker processes. `store` is for their memory."""
        site = Site({client.id: client for client in self.federation.clients}, self.net, store)
        return nullcontext(serial(site)) if self.workers == 1 else processes(site, self.workers)


def resolved(experiment: Experiment) -> Experiment:
    """The experiment with the method's own values where its config left them open; equal runs have equal keys."""
    return _resolved(experiment, configure(experiment.method, from_config(experiment.attack)))


def assemble(
    experiment: Experiment, network: nn.Module | None = None, data: DataSet | Federation | None = None
) -> Assembly:
    """Load the data, divide it among clients, build attack, method and network; wrong requests fail here.

    `network` and `data` are used as they are, instead of what the experiment names, if they are given. A ready-made
    federation is divided already: of [federation] only `at` and `participants` apply to it.
    """
    if network is not None:
        experiment = experiment.model_copy(update={"model": ModelConfig(name=plugins.GIVEN)})
    if data is not None:
        experiment = experiment.model_copy(update={"data": DataConfig(name=plugins.GIVEN)})
    if isinstance(data, Federation):
        own = FederationConfig(at=experiment.federation.at, participants=experiment.federation.participants)
        experiment = experiment.model_copy(update={"federation": own})
    attack = from_config(experiment.attack)
    method = configure(experiment.method, attack)
    aggregate = _aggregation(experiment.train)
    device = pick_device(experiment.run.device)
    source = load_data(experiment.data) if data is None else data
    federation = build_federation(source, experiment.federation, experiment.run.seed)
    net = build_network(experiment, method, len(federation.classes), federation.image_shape, network).to(device)
    method.check(net, federation.image_shape)
    members = tuple(Member(c.id, c.domain, c.role, len(c.train)) for c in federation.clients)
    return Assembly(
        experiment=_resolved(experiment, method),
        federation=federation,
        attack=attack,
        net=net,
        plan=Plan(
            members=members,
            method=method,
            names=layout(net, method.local),
            train=experiment.train,
            seed=experiment.run.seed,
            participants=_participants(experiment, len(members)),
            equal_sizes=federation.equal_sizes,
            aggregate=aggregate,
        ),
        workers=_workers(experiment, device.type, len(members)),
    )


def build_network(
    experiment: Experiment,
    method: Method,
    classes: int,
    image_shape: tuple[int, int, int],
    network: nn.Module | None = None,
) -> DualNet:
    """The network that the experiment names, or the one given, as the method trains it."""
    if network is None:
        model = experiment.model
        network = nets.build(model.name, classes, model.width, image_shape, experiment.run.seed)
    return method.network(network)


def load_data(config: DataConfig) -> DataSet | Federation:
    """The data that a config names, with the domains it names."""
    loaded = load(config.name, config.image_size)
    return loaded if config.domains is None else loaded.only(config.domains)


def _resolved(experiment: Experiment, method: Method) -> Experiment:
    """The experiment with the method's own values where its config left them open."""
    values = {"name": experiment.method.name, **settings(method)}
    return experiment.model_copy(update={"method": MethodConfig.model_validate(values)})


def _aggregation(train: TrainConfig) -> Aggregate:
    name = train.aggregation
    if train.slack is not None:
        if name != "slack":
            raise ConfigError(
                f"got train.slack = {train.slack:g} with train.aggregation = {name!r}, which has no such part; "
                "expected aggregation = 'slack'. Choose it, or leave slack out."
            )
        return Slack(train.slack)
    if name in AGGREGATIONS:
        return AGGREGATIONS[name]
    if not plugins.is_reference(name):
        raise plugins.unknown("train.aggregation", name, AGGREGATIONS)
    found = plugins.resolve(name)
    if not callable(found):
        raise ConfigError(
            f"got train.aggregation {name!r}, which is {type(found).__name__}; expected a function "
            "(shared, contributions) -> shared."
        )
    return cast(Aggregate, found)


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
    """One process per core by default; an accelerator is used from this process alone."""
    if device != "cpu":
        if (experiment.run.workers or 1) > 1:
            raise ConfigError(
                f"got run.workers = {experiment.run.workers} with run.device = {device!r}; expected 1 worker: several "
                "processes would only share the one accelerator. Leave run.workers out."
            )
        return 1
    return experiment.run.workers or min(cores(), members)
