"""Real HTTP on the loopback: strangers are refused before their body is read, and no body is longer than its limit.

The SuperLink's own app serves, behind the starter's restrictions. What is read is counted outside of it.
"""

from __future__ import annotations

import datetime
import logging
import socket
import threading
import time
from base64 import b64encode
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field

import pytest
import torch
import uvicorn
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.common.constant import TIMESTAMP_HEADER
from flwr.proto.fleet_pb2 import ActivateNodeRequest, PullMessagesRequest
from flwr.proto.message_pb2 import PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.date import now
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes, sign_message
from flwr.superlink.main import create_app
from starlette.types import ASGIApp, Receive, Scope, Send

from fedrbn.deploy.superlink import LARGE, PARSER, SMALL, UPLOADS, guarded
from fedrbn.flower import wire
from fedrbn.nets import NETWORKS, build
from fedrbn.nets.state import tensors
from flower.in_process import InProcessGrid

PIECE = 64 * 1024
"""Bytes that are sent at a time; the server reads at most about so many before it looks at them."""
PULL, PUSH, ACTIVATE = (f"/v1/fleet/{name}" for name in ("pull-messages", "push-object", "activate-node"))


@dataclass
class Counter:
    """Counts what the server reads of bodies."""

    app: ASGIApp
    read: int = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def counted() -> dict[str, object]:
            message = await receive()
            self.read += len(message.get("body", b""))
            return dict(message)

        await self.app(scope, counted, send)


@dataclass
class Key:
    """A node's key, which signs requests."""

    pair: tuple[object, object] = field(default_factory=generate_key_pairs)

    @property
    def public(self) -> bytes:
        return public_key_to_bytes(self.pair[1])  # type: ignore[arg-type]

    def headers(self, age: float = 0.0) -> dict[str, str]:
        signed = (now() - datetime.timedelta(seconds=age)).isoformat()
        signature = sign_message(self.pair[0], signed.encode())  # type: ignore[arg-type]
        return {
            FLEET_HTTP_PUBLIC_KEY_HEADER: b64encode(self.public).decode(),
            TIMESTAMP_HEADER: signed,
            FLEET_HTTP_SIGNATURE_HEADER: b64encode(signature).decode(),
        }


@dataclass
class SuperLink:
    """A SuperLink that serves, and a node that it knows."""

    counter: Counter
    port: int
    node: int
    key: Key
    stranger: Key = field(default_factory=Key)

    def post(self, path: str, headers: dict[str, str], body: bytes | int, *, stated: int | None = None) -> int:
        """The status of the answer. A number as body is so many bytes, sent in pieces until there is an answer."""
        self.counter.read = 0
        length = stated if stated is not None else len(body) if isinstance(body, bytes) else None
        framing = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
        lines = [f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/protobuf", framing]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        with closing(socket.create_connection(("127.0.0.1", self.port), timeout=20)) as line:
            line.sendall("\r\n".join([*lines, "", ""]).encode())
            if isinstance(body, bytes):
                line.sendall(body)
            else:
                _stream(line, body)
            return int(line.recv(4096).split()[1])


def _stream(line: socket.socket, size: int) -> None:
    """Send chunks until all is sent, or the other side has answered or closed."""
    piece = f"{PIECE:x}\r\n".encode() + bytes(PIECE) + b"\r\n"
    try:
        for _ in range(size // PIECE):
            line.settimeout(0.001)
            try:
                if line.recv(1, socket.MSG_PEEK):
                    return
            except TimeoutError:
                line.settimeout(20)
            line.sendall(piece)
        line.sendall(b"0\r\n\r\n")
    except (ConnectionError, TimeoutError):
        return
    finally:
        line.settimeout(20)


@pytest.fixture(scope="module")
def superlink() -> Iterator[SuperLink]:
    app = create_app()
    app.state.enable_supernode_auth = True
    key = Key()
    node = app.state.linkstate_factory.state().create_node("<id:none>", "none", key.public, 30)
    counter = Counter(guarded(app))
    config = uvicorn.Config(counter, host="127.0.0.1", port=0, log_level="error", lifespan="off", **PARSER)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.05)
    yield SuperLink(counter, server.servers[0].sockets[0].getsockname()[1], node, key)
    server.should_exit = True
    thread.join(timeout=30)


def test_an_outsider_is_refused_before_anything_is_read(superlink: SuperLink) -> None:
    assert superlink.post(PULL, {}, b"x" * 1000) == 401
    assert superlink.counter.read == 0
    assert superlink.post(PULL, {}, 16 * 2**20) == 401, "a body that does not say how long it is"
    assert superlink.counter.read == 0
    assert superlink.post(PULL, {}, b"", stated=900 * 10**6) == 413, "one that does"
    assert superlink.counter.read == 0


@pytest.mark.parametrize("path", [PULL, PUSH, ACTIVATE, "/v1/fleet/push-messages", "/v1/fleet/nothing"])
def test_no_path_of_the_fleet_api_is_open(superlink: SuperLink, path: str) -> None:
    assert superlink.post(path, {}, b"x" * 1000) == 401
    assert superlink.counter.read == 0


@pytest.mark.parametrize("broken", ["stranger", "old", "future", "signature", "no key", "no date", "text"])
def test_only_a_registered_key_that_has_just_signed_counts(superlink: SuperLink, broken: str) -> None:
    headers = superlink.key.headers()
    changes: dict[str, dict[str, str]] = {
        "stranger": superlink.stranger.headers(),
        "old": superlink.key.headers(age=400),
        "future": superlink.key.headers(age=-60),
        "signature": {FLEET_HTTP_SIGNATURE_HEADER: superlink.stranger.headers()[FLEET_HTTP_SIGNATURE_HEADER]},
        "no key": {FLEET_HTTP_PUBLIC_KEY_HEADER: b64encode(b"-----BEGIN PUBLIC KEY-----").decode()},
        "no date": {TIMESTAMP_HEADER: "yesterday"},
        "text": {FLEET_HTTP_PUBLIC_KEY_HEADER: "$$$"},
    }
    assert superlink.post(PUSH, headers | changes[broken], b"x" * 1000) == 401
    assert superlink.counter.read == 0


@pytest.mark.parametrize(("path", "limit"), [(PULL, SMALL), (PUSH, LARGE)])
def test_a_registered_node_is_stopped_at_the_limit(superlink: SuperLink, path: str, limit: int) -> None:
    assert superlink.post(path, superlink.key.headers(), limit + 4 * 2**20) == 413
    assert limit < superlink.counter.read <= limit + 4 * PIECE
    assert superlink.post(path, superlink.key.headers(), b"", stated=limit + 1) == 413
    assert superlink.counter.read == 0


def test_a_stranger_with_a_key_of_its_own_gets_no_further_than_a_small_request(superlink: SuperLink) -> None:
    """Flower tells it that its key is not registered."""
    request = ActivateNodeRequest(public_key=superlink.stranger.public, heartbeat_interval=30)
    assert superlink.post(ACTIVATE, superlink.stranger.headers(), request.SerializeToString()) not in (200, 401, 413)
    assert superlink.post(ACTIVATE, superlink.stranger.headers(), 4 * 2**20) == 413
    assert superlink.counter.read <= SMALL + 4 * PIECE


def test_a_registered_node_is_served(superlink: SuperLink) -> None:
    activate = ActivateNodeRequest(public_key=superlink.key.public, heartbeat_interval=30)
    assert superlink.post(ACTIVATE, superlink.key.headers(), activate.SerializeToString()) == 200
    pull = PullMessagesRequest(node=Node(node_id=superlink.node)).SerializeToString()
    assert superlink.post(PULL, superlink.key.headers(), pull) == 200
    assert superlink.counter.read == len(pull)


def streamed(superlink: SuperLink, start: bytes, piece: bytes, size: int) -> tuple[int, int]:
    """(bytes that the server took, status of its answer) for a request that goes on until the server ends it."""
    superlink.counter.read = taken = 0
    with closing(socket.create_connection(("127.0.0.1", superlink.port), timeout=20)) as line:
        line.sendall(start)
        try:
            while taken < size:
                line.settimeout(0.01)
                try:
                    line.recv(1, socket.MSG_PEEK)
                    break
                except TimeoutError:
                    line.settimeout(20)
                line.sendall(piece)
                taken += len(piece)
            line.settimeout(20)
            answer = line.recv(4096)
        except ConnectionError:
            return taken, 0
    return taken, int(answer.split()[1]) if answer else 0


ENDLESS = {
    "headers": (f"POST {PULL} HTTP/1.1\r\n".encode(), b"".join(b"x-%d: y\r\n" % number for number in range(6000))),
    "one header": (f"POST {PULL} HTTP/1.1\r\nx: ".encode(), b"y" * PIECE),
    "an address": (f"POST {PULL}?".encode(), b"y" * PIECE),
    "a method": (b"", b"P" * PIECE),
    "empty lines": (b"", b"\r\n" * (PIECE // 2)),
    "a chunk's length": (
        f"POST {PULL} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode(),
        b"0" * PIECE,
    ),
    "a chunk's extension": (
        f"POST {PULL} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5;".encode(),
        b"y" * PIECE,
    ),
    "trailers": (
        f"POST {PULL} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n".encode(),
        b"x: y\r\n" * (PIECE // 6),
    ),
}


@pytest.mark.parametrize("kind", ENDLESS)
def test_no_other_part_of_a_request_goes_on_for_ever(superlink: SuperLink, kind: str) -> None:
    """From anyone, with or without a key: what is not body is limited too."""
    taken, status = streamed(superlink, *ENDLESS[kind], size=16 * 2**20)
    assert taken < 8 * 2**20, "what is on its way when the server closes counts, too"
    assert status in (0, 400, 401, 431)
    assert superlink.counter.read == 0


ODD_LENGTHS = {
    "shorter than the body": ["Content-Length: 4"],
    "negative": ["Content-Length: -1"],
    "signed": ["Content-Length: +5"],
    "two that differ": ["Content-Length: 5", "Content-Length: 50000000"],
    "in hex": ["Content-Length: 0x10"],
    "and chunked": ["Content-Length: 5", "Transfer-Encoding: chunked"],
    "chunked twice": ["Transfer-Encoding: chunked, chunked"],
    "gzip": ["Transfer-Encoding: gzip, chunked"],
    "none at all": [],
    "expects to be asked": ["Expect: 100-continue", "Content-Length: 900000000"],
    "WebSocket": ["Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: eA=="],
    "HTTP/2": ["Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__"],
}


@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize("kind", ODD_LENGTHS)
def test_a_stranger_with_an_odd_length_has_nothing_read(superlink: SuperLink, kind: str, version: str) -> None:
    lines = [f"POST {PULL} HTTP/{version}", "Host: x", *ODD_LENGTHS[kind], "", ""]
    _, status = streamed(superlink, "\r\n".join(lines).encode(), bytes(PIECE), size=4 * 2**20)
    assert status in (0, 400, 401, 413, 426, 501)
    assert superlink.counter.read == 0


def test_a_preface_of_http_2_is_refused(superlink: SuperLink) -> None:
    _, status = streamed(superlink, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", bytes(PIECE), size=2**20)
    assert status in (0, 400, 404, 505)
    assert superlink.counter.read == 0


def test_a_node_is_served_while_others_send_slowly_or_nothing(superlink: SuperLink) -> None:
    """Half requests, headers without an end, and bodies of which a byte comes at a time: 60 of each wait."""
    half = f"POST {PULL} HTTP/1.1\r\nHost: x\r\n".encode()
    signed = "".join(f"{name}: {value}\r\n" for name, value in superlink.key.headers().items()).encode()
    starts = [b"", half, half + signed + b"Content-Length: 60000\r\n\r\nx"]
    lines = [socket.create_connection(("127.0.0.1", superlink.port), timeout=20) for _ in range(60) for _ in starts]
    try:
        for number, line in enumerate(lines):
            line.sendall(starts[number % len(starts)])
        pull = PullMessagesRequest(node=Node(node_id=superlink.node)).SerializeToString()
        assert superlink.post(PULL, superlink.key.headers(), pull) == 200
    finally:
        for line in lines:
            line.close()


def test_a_message_with_the_largest_network_passes(superlink: SuperLink) -> None:
    """Every piece that Flower sends of it is below the limit, and the largest one reaches Flower."""
    InProcessGrid(None, {})  # type: ignore[arg-type]  # sets who messages are from
    with torch.device("meta"):
        shapes = {name: (3, 28, 28) if name == "digits" else (3, 256, 256) for name in NETWORKS}
        networks = [build(name, 345, 1.0, shape, 0) for name, shape in shapes.items()]
    size = max(sum(tensor.nbytes for tensor in tensors(net).values()) for net in networks)
    content = Array("uint8", (size,), wire.SAFETENSORS, bytes(size))
    message = Message(RecordDict({"shared": ArrayRecord({"tensors": content})}), dst_node_id=1, message_type="train")
    pieces = [each.deflate() for each in get_all_nested_objects(message).values()]
    requests = [
        PushObjectRequest(
            node=Node(node_id=superlink.node), run_id=1, object_id="f" * 64, object_content=piece, session_id="0" * 64
        ).SerializeToString()
        for piece in sorted(pieces, key=len)[-1:]
    ]
    assert size > 10 * LARGE
    assert PUSH in UPLOADS
    assert len(requests[0]) <= LARGE
    assert superlink.post(PUSH, superlink.key.headers(), requests[0]) not in (401, 413)
    assert superlink.counter.read == len(requests[0])


@pytest.mark.parametrize(("age", "said"), [(86400.0, "86400 s ago"), (-86400.0, "86400 s ahead")])
def test_a_registered_node_whose_clock_is_a_day_off_is_refused_and_named(
    superlink: SuperLink, caplog: pytest.LogCaptureFixture, age: float, said: str
) -> None:
    """Flower ends such a node without a word of the cause, so the server's log has to say it."""
    caplog.set_level("WARNING", "uvicorn.error")
    caplog.handler.setLevel("WARNING")
    logging.getLogger("uvicorn.error").addHandler(caplog.handler)  # uvicorn's logger does not pass records on
    try:
        assert superlink.post(ACTIVATE, superlink.key.headers(age), b"") == 401
        named = [record.getMessage() for record in caplog.records if "Set the clock" in record.getMessage()]
        caplog.clear()
        assert superlink.post(ACTIVATE, superlink.stranger.headers(age), b"") == 401
    finally:
        logging.getLogger("uvicorn.error").removeHandler(caplog.handler)
    assert len(named) >= 1
    assert said in named[0]
    assert "127.0.0.1" in named[0]
    assert not caplog.records, "anybody could fill the log"
