"""Every message gets exactly one answer, or a reason."""

from __future__ import annotations

import time
from collections.abc import Iterable

import pytest
from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.clientapp import ClientApp

from fedrbn.flower import wire
from fedrbn.flower.client_app import app
from fedrbn.flower.exchange import CAUSES, NoAnswer, OutgoingMessage, exchange

from .in_process import InProcessGrid

echo = ClientApp()


@echo.train()
def _echo(message: Message, context: object) -> Message:
    return Message(message.content, reply_to=message)


def outgoing(*nodes: int) -> dict[str, OutgoingMessage]:
    return {f"c{node}": OutgoingMessage(node, RecordDict({"order": ConfigRecord({"node": node})})) for node in nodes}


def answers(grid: InProcessGrid, *nodes: int, deadline: float = 5.0) -> dict[str, RecordDict | NoAnswer]:
    found = list(exchange(grid, outgoing(*nodes), "train", group="1", deadline=deadline, poll=0.01))
    assert len(found) == len({key for key, _ in found}), "one answer each"
    return dict(found)


def test_answers_find_their_messages_in_whatever_order_they_come() -> None:
    class Reversed(InProcessGrid):
        def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
            return list(super().pull_messages(message_ids))[::-1]

    found = answers(Reversed(echo, {1: {}, 2: {}, 3: {}}), 1, 2, 3)
    assert {key: reply["order"]["node"] for key, reply in found.items() if isinstance(reply, RecordDict)} == {  # type: ignore[index]
        "c1": 1,
        "c2": 2,
        "c3": 3,
    }
    assert answers(InProcessGrid(echo, {})) == {}, "nobody to write to"


@pytest.mark.parametrize("code", [0, *CAUSES])
def test_flowers_errors_become_reasons(code: int) -> None:
    """Also where the error comes from the SuperLink, node 1, because the node itself is dead."""

    class Failing(InProcessGrid):
        def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
            replies = list(super().pull_messages(message_ids))
            return [reply if reply.metadata.src_node_id == 1 else self._dead(reply) for reply in replies]

        def _dead(self, reply: Message) -> Message:
            failed = Message(Error(code, "boom"), reply_to=reply)
            failed.metadata.__dict__.update(
                _reply_to_message_id=reply.metadata.reply_to_message_id, _src_node_id=1, _dst_node_id=1
            )
            return failed

    (reply,) = answers(Failing(echo, {7: {}}), 7).values()
    assert isinstance(reply, NoAnswer)
    assert CAUSES.get(code, "Flower reports an error") in reply.cause
    assert f"(code {code}): boom" in reply.cause


def test_a_node_that_is_not_there_and_an_app_that_raises() -> None:
    found = answers(InProcessGrid(app, {1: {}}), 1, 2)
    assert isinstance(found["c1"], NoAnswer)
    assert "raised an exception (code 2)" in found["c1"].cause, "the order cannot be read"
    assert found["c2"] == NoAnswer("the node has disconnected (code 5)")


def test_a_message_that_the_superlink_does_not_take() -> None:
    class Choosy(InProcessGrid):
        def push_messages(self, messages: Iterable[Message]) -> list[str]:
            return list(super().push_messages(messages))[1:]

    found = answers(Choosy(echo, {1: {}, 2: {}}), 1, 2)
    assert found["c1"] == NoAnswer("the SuperLink did not accept the message")
    assert isinstance(found["c2"], RecordDict)


def test_late_answers_are_not_waited_for() -> None:
    class Late(InProcessGrid):
        def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
            return []

    started = time.monotonic()
    assert answers(Late(echo, {1: {}}), 1, deadline=0.1) == {"c1": NoAnswer("no answer within 0.1 s")}
    assert time.monotonic() - started < 5


def test_messages_pass_through_flowers_own_bytes() -> None:
    """What travels is equal, and not the same object: nothing can be passed on the side."""
    record = wire.packed({})
    grid = InProcessGrid(echo, {1: {}})
    ((_, reply),) = exchange(
        grid, {"a": OutgoingMessage(1, RecordDict({"shared": record}))}, "train", group="", deadline=1, poll=0.01
    )
    assert isinstance(reply, RecordDict)
    assert reply["shared"] == record
    assert reply["shared"] is not record
