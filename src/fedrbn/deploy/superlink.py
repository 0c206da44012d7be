"""Flower's SuperLink with two restrictions: other machines reach only its Fleet API, and must first show a valid key.

SuperLink serves three interfaces on one port. *Fleet* is for nodes and checks their keys. *Control* registers keys and
starts runs, and *Runtime* hands out tasks. In Flower's open edition these two do not authenticate callers, so anyone
who reaches the port could register a key and run any code on the server and on all nodes. Here these two answer only
callers on the same machine: the operator and the server's own processes (`FleetOnly`).

Flower checks the key of a Fleet request after it has read the request's body, of any length, into memory. Here the
signed headers are checked before the first byte of the body is read, and the size of a body is limited (`BodyGuard`).
The headers themselves are limited by the parser (`PARSER`).

    python -m fedrbn.deploy.superlink <the options of flower-superlink>
"""

from __future__ import annotations

import datetime
import ipaddress
import logging
from base64 import b64decode
from dataclasses import dataclass
from typing import Any

import uvicorn
from cryptography.exceptions import UnsupportedAlgorithm
from fastapi import FastAPI
from flwr.common.constant import (
    FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE,
    SYSTEM_TIME_TOLERANCE,
    TIMESTAMP_HEADER,
    TIMESTAMP_TOLERANCE,
)
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.corestate import sql_corestate
from flwr.supercore.date import now
from flwr.supercore.http_logging import get_uvicorn_log_config
from flwr.supercore.logger import console_handler
from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature
from flwr.superlink.cli.flower_superlink import SuperLinkLifespan, _parse_superlink_lifespan_config
from flwr.superlink.main import create_app
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

FLEET = "/v1/fleet/"
PUBLIC = (FLEET, "/health")
"""The prefix of the paths that other machines may request."""
BEFORE_REGISTRATION = (f"{FLEET}register-node", f"{FLEET}activate-node")
"""The request of a node whose key may not be registered yet: Flower answers it with a clear error."""
UPLOADS = (f"{FLEET}push-object", f"{FLEET}push-messages")
"""The requests that carry a node's results."""
SMALL = 64 * 1024
"""Maximum bytes of any other request: it names a node, a run or an object."""
LARGE = FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE + 1024 * 1024
"""Maximum bytes of a request with results. Flower sends a model of any size in pieces of 5 MiB (the environment
variable FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE, which must be the same on all machines); the rest is for names."""
STARTING = 120
"""Seconds until a process that the SuperLink has started must report that it is running. Flower's value is 30. On a
small or busy machine the imports alone take longer; the process would be rejected and restarted in an endless loop.
Flower derives the number from a task's heartbeats, so a dead server program is noticed after twice this time."""
PARSER: dict[str, Any] = {"http": "h11", "h11_max_incomplete_event_size": SMALL, "ws": "none"}
"""How uvicorn reads requests. Its default parser, httptools, collects addresses, headers and trailers of any length in
memory, from anyone. h11 stops at a limit and answers 431 or 400. Flower uses no WebSockets."""
REFUSAL = "Only the Fleet API is open to other machines. Run flwr commands on the machine of the SuperLink."


class FleetOnly:
    """Rejects requests from other machines for anything except the Fleet API."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 403."""
        answer = self.app if admitted(scope) else PlainTextResponse(REFUSAL, status_code=403)
        await answer(scope, receive, send)


def admitted(scope: Scope) -> bool:
    """Whether this request is allowed: it is local, or it is for the Fleet API."""
    if scope["type"] == "lifespan":  # startup and shutdown of the server itself
        return True
    client = scope.get("client")
    return is_local(client[0] if client else "") or str(scope["path"]).startswith(PUBLIC)


@dataclass(frozen=True)
class Denial:
    """Why a request is rejected before its body is read."""

    status: int
    reason: str

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer and close the connection: the rest of the body is not read."""
        await PlainTextResponse(self.reason, self.status, {"Connection": "close"})(scope, receive, send)


class BodyGuard:
    """Rejects Fleet requests without a valid key before their body is read (401), and bodies that are too large (413).

    A body of unknown length is counted while it streams, and its request ends at the limit.
    """

    def __init__(self, app: ASGIApp, small: int = SMALL, large: int = LARGE) -> None:
        self.app = app
        self.small = small
        self.large = large

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on with a body of limited length, or reject it."""
        if scope["type"] != "http" or not _is_guarded(scope):
            await self.app(scope, receive, send)
            return
        most = self.large if scope["path"] in UPLOADS else self.small
        denial = too_long(Headers(scope=scope), most)
        if denial is None and str(scope["path"]).startswith(FLEET):
            denial = await run_in_threadpool(unauthenticated, scope)
        if denial is not None:
            await denial(scope, receive, send)
            return
        await self._pass_on(scope, receive, send, most)

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send, most: int) -> None:
        read, refused = 0, False

        async def counted() -> Message:
            nonlocal read, refused
            message = await receive()
            read += len(message.get("body", b""))
            refused = refused or read > most
            return {"type": "http.disconnect"} if refused else message  # the app sees a disconnected caller

        async def answer(message: Message) -> None:
            if not refused:
                await send(message)

        try:
            await self.app(scope, counted, answer)
        except ClientDisconnect:
            if not refused:
                raise
        if refused:
            await _longer_than(most)(scope, receive, send)


def _is_guarded(scope: Scope) -> bool:
    """Whether a request must be checked: it is for the Fleet API, or from another machine."""
    client = scope.get("client")
    return str(scope["path"]).startswith(FLEET) or not is_local(client[0] if client else "")


def too_long(headers: Headers, most: int) -> Denial | None:
    """Why a request is rejected because of its stated length; None if it is not, or if it states none."""
    stated = headers.get("content-length")
    if stated is None:
        return None
    if not (stated.isascii() and stated.isdigit()):
        return Denial(400, "got a Content-Length that is not a number; expected a number.")
    return _longer_than(most) if len(stated) > 18 or int(stated) > most else None


def _longer_than(most: int) -> Denial:
    return Denial(413, f"got a body of more than {most} bytes; expected at most {most}. See docs/security.md.")


def unauthenticated(scope: Scope) -> Denial | None:
    """Why a Fleet request is rejected because of its headers; None if a registered node has signed them recently.

    Flower repeats the check when it has the body, and also checks that the body names the same node.
    """
    headers, state = Headers(scope=scope), scope["app"].state
    try:
        key = b64decode(headers[FLEET_HTTP_PUBLIC_KEY_HEADER], validate=True)
        signature = b64decode(headers[FLEET_HTTP_SIGNATURE_HEADER], validate=True)
        timestamp = headers[TIMESTAMP_HEADER]
        age = (now() - datetime.datetime.fromisoformat(timestamp)).total_seconds()
        genuine = verify_signature(bytes_to_public_key(key), timestamp.encode("ascii"), signature)
    except (KeyError, ValueError, TypeError, AttributeError, OverflowError, UnsupportedAlgorithm):
        genuine = False
    lately = genuine and -SYSTEM_TIME_TOLERANCE < age < TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE
    if lately and (scope["path"] in BEFORE_REGISTRATION or _registered(state, key)):
        return None
    if genuine and not lately and _registered(state, key):
        return _wrong_clock(age, scope)
    return Denial(401, "got no valid signature of a registered node; expected one before the body. Register its key.")


def _wrong_clock(age: float, scope: Scope) -> Denial:
    """A registered node with a wrong clock: it ends without a reason, so the server's log gives it."""
    caller = (scope.get("client") or ("unknown",))[0]
    reason = (
        f"got a request that a registered node signed {abs(age):.0f} s {'ago' if age > 0 else 'ahead'}; expected at "
        f"most {TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE} s ago by this clock. Set the clock of the node at "
        f"{caller}."
    )
    logging.getLogger("uvicorn.error").warning(reason)
    return Denial(401, reason)


def _registered(state: Any, key: bytes) -> bool:
    return state.linkstate_factory.state().get_node_id_by_public_key(key) is not None


def is_local(address: str) -> bool:
    """Whether an IP address is this machine's loopback; anything that is not an address counts as remote."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return (mapped or parsed).is_loopback


def guarded(app: FastAPI) -> FastAPI:
    """The SuperLink's app behind both restrictions."""
    app.add_middleware(BodyGuard)
    app.add_middleware(FleetOnly)
    return app


def main() -> None:
    """Start the SuperLink and serve until a signal ends it."""
    config = _parse_superlink_lifespan_config()
    setattr(sql_corestate, "HEARTBEAT_DEFAULT_INTERVAL", STARTING)  # noqa: B010  (Flower has no setting for it)
    uvicorn.run(
        app=guarded(create_app(config, SuperLinkLifespan)),
        host=config.host,
        port=config.port,
        proxy_headers=False,  # an X-Forwarded-For header must not make a remote caller look local
        access_log=False,
        log_config=get_uvicorn_log_config(console_handler.level),
        ssl_keyfile=config.ssl_keyfile,
        ssl_certfile=config.ssl_certfile,
        workers=1,
        **PARSER,
    )


if __name__ == "__main__":
    main()
