"""The server's side of a run on Flower: which clients take part, and the experiment of the next round."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from flwr.serverapp import Grid

from fedrbn.attacks import Attack, LogitsAttack, Untargeted, from_config
from fedrbn.config import Dirichlet, Experiment
from fedrbn.data.digests import digest_of_all
from fedrbn.errors import ConfigError
from fedrbn.federated.aggregation.layout import layout
from fedrbn.federated.assemble import build_network, build_plan
from fedrbn.federated.options import configure
from fedrbn.federated.prepared_experiment import Outline, PreparedExperiment
from fedrbn.federated.protocol import MOST_CAUSE, ServerState
from fedrbn.federated.server import Plan, donors
from fedrbn.fleet.probe import workload
from fedrbn.flower.claim_checks import capped_samples, suspicions
from fedrbn.flower.control import Control, read_control
from fedrbn.flower.grid_execute import NodeLink
from fedrbn.flower.handshake import (
    Agreement,
    Introduction,
    afforded_duties,
    configured_duties,
    unplanned,
    wrong_network,
    wrong_part,
)
from fedrbn.flower.instructions import setup_for
from fedrbn.flower.log import EventLog
from fedrbn.flower.messages import Parts
from fedrbn.flower.newcomers import with_newcomers
from fedrbn.flower.registry import Registry
from fedrbn.flower.roster import NodeDiscovery, Roster
from fedrbn.flower.settings import FlowerConfig
from fedrbn.flower.site import fingerprint, parts
from fedrbn.hardware import pick_precision
from fedrbn.nets.dual_bn import DualNet
from fedrbn.runs.directory import RunDirectory
from fedrbn.runs.duties import with_next_duties
from fedrbn.types import Duty, Member, Role


@dataclass(frozen=True)
class RemoteExperiment:
    """A `PreparedExperiment` whose data are on other machines."""

    experiment: Experiment
    attack: Attack
    net: DualNet
    plan: Plan
    outline: Outline
    digests: tuple[tuple[str, str], ...]
    barred: tuple[str, ...]

    @property
    def adversary(self) -> LogitsAttack:
        """The attack of the config, as evaluation calls it."""
        return Untargeted(self.attack)

    @property
    def precision(self) -> torch.dtype | None:
        """The precision that the settings give on this machine; every node decides for itself."""
        return pick_precision(self.experiment.run.precision, self.net.device)

    @property
    def forgiving(self) -> bool:
        """True: clients come and go."""
        return True

    def record_extras(self, state: ServerState) -> dict[str, Any]:
        """Clients that are flagged because their statistics contradict their claim, barred, or not used as donors."""
        found: dict[str, Any] = {
            "flagged": suspicions(state.personal, donors(state, self.plan), self.plan.names.batch_norms),
            "barred": list(self.barred),
            "silenced": sorted(self.plan.silenced),
        }
        return {name: value for name, value in found.items() if value}

    def with_plan(self, plan: Plan) -> RemoteExperiment:
        """The same experiment with another plan."""
        return replace(self, plan=plan)

    def samples_digest(self) -> str:
        """Twelve hex digits that identify the test samples of all clients and their order."""
        return digest_of_all(self.digests)


@dataclass(frozen=True)
class Terms:
    """The terms of a deployment: the experiment, what nodes must have in common, and the run directory."""

    experiment: Experiment
    settings: FlowerConfig
    common: Agreement
    token: str
    directory: RunDirectory
    log: EventLog


class RemoteFederation:
    """Keeps track of the clients and prepares the experiment of the next round for them."""

    def __init__(self, terms: Terms, discovery: NodeDiscovery) -> None:
        self.terms = terms
        self.discovery = discovery
        experiment, common = terms.experiment, terms.common
        self.attack = from_config(experiment.attack)
        self.method = configure(experiment.method, self.attack)
        self.net = build_network(experiment, self.method, len(common.classes), common.image_shape)
        self.method.check(self.net, common.image_shape)
        self.names = layout(self.net, self.method.local)
        self.control = Control()
        self.parts = Parts.of(self.net, self.names)
        self.counted: dict[str, int] = {}
        """The number of samples that each client counts for in this round."""
        known: tuple[Member, ...] = terms.directory.description()[0] if described(terms.directory) else ()
        registry = Registry(terms.directory.path / "nodes.json")
        self.roster = Roster(known, registry, self._duties, self._objection, terms.log)

    def _duties(self, nodes: Mapping[str, Introduction]) -> Mapping[str, Duty]:
        experiment, settings, common = self.terms.experiment, self.terms.settings, self.terms.common
        if not self.method.adversarial:
            return dict.fromkeys(nodes, Role.ST.duty)
        if settings.roles == "config":
            return configured_duties(nodes, experiment)
        asked = workload(experiment, len(common.classes), common.image_shape)
        return afforded_duties(nodes, asked, experiment.faults.deadline_seconds or settings.deadline)

    def _objection(self, node: Introduction) -> str | None:
        return (
            self.terms.common.objection(node)
            or (unplanned(node, self.terms.experiment) if self.terms.settings.roles == "config" else None)
            or wrong_network(node, fingerprint(self.net, self.names))
            or (wrong_part(node, self._users) if node.partition is not None and self._users else None)
        )

    @cached_property
    def _users(self) -> tuple[Member, ...]:
        """The users that the experiment's own data set is divided among; empty if the server does not have the data."""
        try:
            return parts(setup_for(Role.ST, self.terms.experiment, self.terms.token))
        except (ValueError, TypeError, KeyError, RuntimeError, OSError) as error:
            self.terms.log("parts not checked", reason=f"the data set cannot be loaded here: {error}"[:MOST_CAUSE])
            return ()

    def refresh(self) -> None:
        """Record which clients have joined or left; new ones take part from the next round on."""
        self.roster.update(*self.discovery.discover())

    def line(self, grid: Grid) -> NodeLink:
        """The connection for sending jobs to the clients."""
        settings = self.terms.settings
        return NodeLink(
            grid=grid,
            experiment=self.terms.experiment,
            token=self.terms.token,
            parts=self.parts,
            address=self.roster.address,
            counted=self.counted.__getitem__,
            refresh=self.refresh,
            log=self.terms.log,
            deadline=settings.deadline,
            poll=settings.poll,
            transport=settings.transport,
        )

    def prepared(self) -> RemoteExperiment:
        """The experiment for the clients that are currently known and not barred."""
        told, common = self.roster.told, self.terms.common
        claimed = tuple(m for m in self.roster.members.values() if m.id not in self.control.bar)
        if not claimed:
            raise ConfigError("got every client barred in control.toml; expected some that take part. Correct it.")
        members = self._counted(claimed)
        self._note_counts(claimed, members)
        labels = {member.domain: member.domain for member in members}
        labels |= {told[m.id].domain: told[m.id].label for m in members if m.id in told}
        plan = build_plan(self.terms.experiment, self.method, self.net, members, self._equal_sizes(members))
        return RemoteExperiment(
            experiment=self.terms.experiment,
            attack=self.attack,
            net=self.net,
            plan=replace(plan, silenced=frozenset(self.control.drop_donors)),
            outline=Outline(
                common.classes, common.image_shape, labels, validation=any(each.validation for each in told.values())
            ),
            digests=tuple((m.id, told[m.id].test if m.id in told else "") for m in members),
            barred=self.control.bar,
        )

    def _counted(self, members: tuple[Member, ...]) -> tuple[Member, ...]:
        """The members with the samples that they count for: from the shared data set, if any; else limited claims."""
        return members if self._users_only(members) and self._users else capped_samples(members)

    def _note_counts(self, claimed: Iterable[Member], members: Iterable[Member]) -> None:
        for before, after in zip(claimed, members, strict=True):
            if after.samples < before.samples and self.counted.get(after.id) != after.samples:
                self.terms.log(
                    "claim capped",
                    client=after.id,
                    reason=f"got {before.samples} samples; expected at most twice the median of all clients' claims. "
                    f"It counts for {after.samples}. Bar it in control.toml if it cannot have that many.",
                )
            self.counted[after.id] = after.samples

    def _users_only(self, members: Iterable[Member]) -> bool:
        """Whether no connected client has its own data."""
        told = self.roster.told
        return all(told[member.id].partition is not None for member in members if member.id in told)

    def _equal_sizes(self, members: Iterable[Member]) -> bool:
        """As in an embedded run if all share one data set; otherwise all clients run the mean number of iterations."""
        divided = self.terms.experiment.federation.partition.sizes
        return self._users_only(members) and not isinstance(divided, Dirichlet)

    def revise(self, prepared: PreparedExperiment, state: ServerState) -> tuple[PreparedExperiment, ServerState]:  # noqa: ARG002
        """Before each round and the evaluation: update connected and barred clients; new ones get a batch norm."""
        self.refresh()
        directory, common = self.terms.directory, self.terms.common
        self.control = read_control(directory.path / "control.toml", self.control, self.terms.log)
        revised = with_next_duties(self.prepared(), directory)
        self.roster.assign(revised.plan.members)
        everybody = self._counted(tuple(self.roster.members.values()))
        directory.describe(everybody, common.classes, common.image_shape)
        unknown = [member.id for member in revised.plan.members if member.id not in state.personal]
        kept = self.roster.kept(unknown, self.parts.personal)
        state = with_newcomers(state, revised.plan, self.net, kept, self.roster.refuse_kept)
        self.roster.forget_kept()
        return revised, state


def described(directory: RunDirectory) -> bool:
    """Whether the run has had clients before."""
    return (directory.path / "federation.json").exists()
