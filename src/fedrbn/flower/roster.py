"""Which clients take part: nodes introduce themselves, join, leave and return; it maps clients to Flower's nodes.

Node ids may change when a node restarts. A node says which client it is, and a client belongs to the first node that
said so (`registry`). A second node with the same key waits while the client is still connected. A client keeps its
duty, its position and its number of samples permanently, so that a resumed run has the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from flwr.app import ConfigRecord, RecordDict
from flwr.serverapp import Grid

from fedrbn.errors import MessageError
from fedrbn.flower import wire
from fedrbn.flower.exchange import NoAnswer, OutgoingMessage, exchange
from fedrbn.flower.handshake import Introduction, Refusal, Response
from fedrbn.flower.log import EventLog
from fedrbn.flower.registry import ANYBODY, Identity, Registry, identities
from fedrbn.flower.wire import Specs
from fedrbn.types import Duty, Member, Tensors

Decide = Callable[[Mapping[str, Introduction]], Mapping[str, Duty]]
"""Duties for all connected nodes."""
Objection = Callable[[Introduction], str | None]
"""Why a node cannot take part; None if it can."""


@dataclass(frozen=True)
class Candidate:
    """A node that has introduced itself, and its stored batch norm, not yet checked."""

    node: int
    introduction: Introduction
    records: RecordDict
    identity: Identity = ANYBODY
    """What the SuperLink knows about the node."""

    @property
    def order(self) -> tuple[bool, int, str]:
        """The sort key of clients: first those with a part of a shared data set, then by name."""
        told = self.introduction
        return told.partition is None, told.partition or 0, told.client


class NodeDiscovery:
    """Asks every node once to introduce itself."""

    def __init__(
        self,
        grid: Grid,
        setup: ConfigRecord,
        objection: Objection,
        log: EventLog,
        *,
        deadline: float,
        poll: float,
        bind: bool = True,
    ) -> None:
        self.grid = grid
        self.setup = setup
        self.log = log
        self.objection = objection
        self.deadline = deadline
        self.poll = poll
        self.bind = bind
        """Whether keys are checked."""
        self.known: set[int] = set()
        """Nodes that have answered, with any answer."""
        self.silent: dict[int, int] = {}
        """How often nodes were asked without an answer: they are asked less and less often."""
        self.calls = 0

    def discover(self) -> tuple[set[int], list[Candidate]]:
        """(the connected nodes, those of them that have just introduced themselves)."""
        nodes = identities(self.grid)
        here = set(nodes)
        self.known &= here  # a node that returns is asked again: its data may have changed
        self.silent = {node: times for node, times in self.silent.items() if node in here}
        self.calls += 1
        asked = [node for node in sorted(here - self.known) if self.calls % 2 ** self.silent.get(node, 0) == 0]
        content = RecordDict({"setup": self.setup})
        outgoing = {str(node): OutgoingMessage(node, content) for node in asked}
        candidates: list[Candidate] = []
        for node, reply in exchange(
            self.grid, outgoing, "query", group="handshake", deadline=self.deadline, poll=self.poll
        ):
            if isinstance(reply, NoAnswer):  # it is asked again, but others should not wait for it every time
                self.silent[int(node)] = min(self.silent.get(int(node), 0) + 1, 6)
                self.log("no introduction", node=node, reason=reply.cause)
                continue
            self.known.add(int(node))
            candidate = self._candidate(int(node), reply, nodes[int(node)])
            if candidate is not None:
                candidates.append(candidate)
        return here, sorted(candidates, key=lambda candidate: candidate.order)

    def _candidate(self, node: int, reply: RecordDict, identity: Identity) -> Candidate | None:
        try:
            said = wire.value_of(reply, "response", Response).content
        except MessageError as error:
            said = Refusal(reason=str(error)[:2000])
        reason = said.reason if isinstance(said, Refusal) else self.objection(said)
        if isinstance(said, Refusal) or reason is not None:
            self.log("refused", node=str(node), reason=reason)
            return None
        return Candidate(node, said, reply, identity if self.bind else ANYBODY)


class Roster:
    """All clients that have ever taken part, in a fixed order, and the current nodes of those that are connected."""

    def __init__(
        self, members: Iterable[Member], registry: Registry, decide: Decide, objection: Objection, log: EventLog
    ) -> None:
        first = registry.samples()
        self.members: dict[str, Member] = {
            member.id: replace(member, samples=first.get(member.id, member.samples)) for member in members
        }
        """With the number of samples of each client's first registration."""
        self.registry = registry
        self.present: dict[str, Candidate] = {}
        self.told: dict[str, Introduction] = {}
        """The last introduction of each client, including those that have left."""
        self.queue: list[Candidate] = []
        """Nodes that claim a client that is still connected: perhaps its loss has not been noticed yet."""
        self.decide = decide
        self.objection = objection
        self.log = log

    def address(self, client: str) -> tuple[int, Member] | None:
        """The current node and member of a client, with the number of samples that it introduced."""
        candidate = self.present.get(client)
        if candidate is None:
            return None
        return candidate.node, replace(self.members[client], samples=candidate.introduction.samples)

    def update(self, here: set[int], candidates: Iterable[Candidate]) -> None:
        """Record which clients have left, and admit guests that are allowed."""
        for client in [client for client, candidate in self.present.items() if candidate.node not in here]:
            del self.present[client]
            self.log("left", client=client)
        again = [candidate for candidate in self.queue if candidate.node in here]
        self.queue = []
        admitted = [candidate for candidate in (*again, *candidates) if self._may_come(candidate, again)]
        duties = self.decide({c: g.introduction for c, g in self.present.items()}) if admitted else {}
        for candidate in admitted:
            told = candidate.introduction
            known = self.members.get(told.client)
            duty = known.duty if known else duties[told.client]
            samples = known.samples if known else told.samples
            self.registry.register(told.client, candidate.identity, samples)
            self.members[told.client] = Member(told.client, told.domain, duty, samples)
            if samples != told.samples:
                self.log(
                    "claim ignored",
                    client=told.client,
                    reason=f"got {told.samples} samples; expected {samples}, as in the client's first registration, "
                    "which still counts. Start a new run to use the new number.",
                )
            self.log(
                "joined",
                client=told.client,
                node=str(candidate.node),
                domain=told.domain,
                role=duty.role.value,
                duty=str(duty),
                samples=samples,
                again=known is not None,
            )

    def _may_come(self, candidate: Candidate, again: Collection[Candidate]) -> bool:
        told = candidate.introduction
        reason = self.objection(told) or self.registry.objection(told.client, candidate.identity)
        if reason is None and told.client in self.present:
            self.queue.append(candidate)
            if candidate in again:
                return False
            reason = (
                f"got a second node for client {told.client!r}; expected one. It waits for the first to leave. If "
                "that is not intended, give each SuperNode its own partition-id or name."
            )
        if reason is not None:
            self.log("refused", node=str(candidate.node), client=told.client, reason=reason)
            return False
        self.present[told.client] = candidate
        self.told[told.client] = told
        return True

    def assign(self, members: Iterable[Member]) -> None:
        """Set the current duties of these clients."""
        for member in members:
            self.members[member.id] = replace(self.members[member.id], duty=member.duty)

    def kept(self, clients: Iterable[str], parts: Specs) -> dict[str, Tensors]:
        """The batch norms that these clients have stored themselves, where available and valid."""
        found: dict[str, Tensors] = {}
        for client in clients:
            candidate = self.present.get(client)
            if candidate is None or candidate.introduction.finished is None:
                continue
            try:
                found[client] = wire.unpacked(candidate.records, "personal", parts)
            except MessageError as error:
                self.refuse_kept(client, str(error))
        return found

    def refuse_kept(self, client: str, reason: str) -> None:
        """Record that a client's stored batch norm is not used: it starts like a new client."""
        self.log("kept batch norm refused", client=client, reason=reason)

    def forget_kept(self) -> None:
        """Free the batch norms that nodes sent, after they were used."""
        self.present = {client: replace(candidate, records=RecordDict()) for client, candidate in self.present.items()}
