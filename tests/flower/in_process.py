"""Flower in one process: a `Grid` that hands each message to the ClientApp at once. No sockets; for tests and trials.

Messages go through Flower's own serialisation on their way, so that whatever could not travel fails here too.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from typing import cast

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from fedrbn.flower.settings import Values


class InProcessGrid(Grid):
    """Nodes are contexts: a node config each, and the state that Flower keeps for them."""

    def __init__(self, client_app: ClientApp, nodes: Mapping[int, Values], run_config: Values | None = None) -> None:
        self.client_app = client_app
        self.run_config = dict(run_config or {})
        self.contexts = {node: self._context(node, config) for node, config in nodes.items()}
        self._replies: dict[str, Message] = {}
        self._run = Run.create_empty(1)
        # Flower's messages ask who they are from; in an app's own process Flower sets this.
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1

    def _context(self, node: int, config: Values) -> Context:
        return Context(1, node, dict(config), RecordDict(), self.run_config)

    def join(self, node: int, config: Values) -> None:
        """A node connects."""
        self.contexts[node] = self._context(node, config)

    def leave(self, node: int) -> None:
        """A node goes away, and Flower's state of it."""
        del self.contexts[node]

    def set_run(self, run: Run) -> None:
        """See `Grid`."""
        self._run = run

    @property
    def run(self) -> Run:
        """See `Grid`."""
        return self._run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """See `Grid`."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """See `Grid`."""
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Have each node do its message at once; answers wait to be pulled."""
        accepted = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = str(uuid.uuid4())  # as Flower's own grids do
            self._replies[message.metadata.message_id] = self._answered(message)
            accepted.append(message.metadata.message_id)
        return accepted

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """See `Grid`."""
        return [self._replies.pop(key) for key in list(message_ids) if key in self._replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """See `Grid`."""
        return self.pull_messages(self.push_messages(messages))

    def _answered(self, message: Message) -> Message:
        context = self.contexts.get(message.metadata.dst_node_id)
        if context is None:
            return Message(Error(ErrorCode.NODE_UNAVAILABLE), reply_to=message)
        try:
            return travelled(self.client_app(travelled(message), context))
        except Exception as error:  # what an app raises, Flower turns into an error code
            return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, str(error)), reply_to=message)


def travelled(message: Message) -> Message:
    """The message as it arrives: taken apart into bytes and put together again, as on the network."""
    objects = get_all_nested_objects(message)
    contents = {key: value.deflate() for key, value in objects.items()}
    arrived = cast(Message, inflate_object_from_contents(message.object_id, contents))
    arrived.metadata.__dict__["_message_id"] = message.metadata.message_id
    return arrived
