"""Sends messages to nodes and receives their answers as they arrive, until a deadline."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

NODE_GONE = 5
CAUSES: Mapping[int, str] = {
    1: "its ClientApp could not be loaded",
    2: "its ClientApp raised an exception",
    3: "the message is no longer available",
    4: "its answer is no longer available",
    NODE_GONE: "the node has disconnected",
    6: "a precondition of Flower's modifiers failed",
    7: "the node refused the app's bundle",
    8: "its client process died",
}
"""What Flower's error codes mean."""


@dataclass(frozen=True)
class OutgoingMessage:
    """A message to a node."""

    node: int
    content: RecordDict


@dataclass(frozen=True)
class NoAnswer:
    """No usable answer, and why."""

    cause: str


def exchange(
    grid: Grid, outgoing: Mapping[str, OutgoingMessage], kind: str, *, group: str, deadline: float, poll: float
) -> Iterator[tuple[str, RecordDict | NoAnswer]]:
    """Send each message; yields (its key, the answer) as answers come, and exactly one for each message.

    An answer is matched by the message that it replies to: if a node has died, its answer comes from the SuperLink.
    """
    if not outgoing:
        return
    messages = {
        key: Message(sent.content, dst_node_id=sent.node, message_type=kind, ttl=deadline, group_id=group)
        for key, sent in outgoing.items()
    }
    accepted = set(grid.push_messages(list(messages.values())))
    pending = {message.metadata.message_id: key for key, message in messages.items()}
    for message_id in pending.keys() - accepted:
        yield pending.pop(message_id), NoAnswer("the SuperLink did not accept the message")
    end = time.monotonic() + deadline
    while pending:
        for reply in grid.pull_messages(list(pending)):
            key = pending.pop(reply.metadata.reply_to_message_id, None)
            if key is not None:
                yield key, _content(reply)
        if not pending:
            return
        if time.monotonic() > end:
            for key in pending.values():
                yield key, NoAnswer(f"no answer within {deadline:g} s")
            return
        time.sleep(poll)


def _content(reply: Message) -> RecordDict | NoAnswer:
    if reply.has_error():
        known = CAUSES.get(reply.error.code, "Flower reports an error")
        detail = f": {reply.error.reason[:1000]}" if reply.error.reason else ""
        return NoAnswer(f"{known} (code {reply.error.code}){detail}")
    return reply.content if reply.has_content() else NoAnswer("an answer without content")
