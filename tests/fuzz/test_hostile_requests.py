"""Whatever headers and pieces of a body a stranger sends to the Fleet API, they do not reach the SuperLink's app."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from deploy.test_body_guard import ACTIVATE, PULL, PUSH, Key
from fedrbn.deploy.superlink import BodyGuard

SMALL, LARGE = 100, 1000
REGISTERED, UNKNOWN = Key(), Key()
STATE = SimpleNamespace(
    linkstate_factory=SimpleNamespace(
        state=lambda: SimpleNamespace(get_node_id_by_public_key=lambda key: 7 if key == REGISTERED.public else None)
    )
)

paths = st.sampled_from([PULL, PUSH, ACTIVATE, "/v1/fleet/", "/health"])
names = st.sampled_from([*REGISTERED.headers()])
odd_headers = st.dictionaries(names, st.one_of(st.text(st.characters(max_codepoint=255), max_size=80), st.just("")))
pieces = st.lists(st.integers(0, 400).map(bytes), max_size=12)
stated = st.one_of(st.none(), st.integers(-1, 2**70).map(str), st.text(st.characters(max_codepoint=255), max_size=5))


def tried(path: str, headers: dict[str, str], length: str | None, body: list[bytes]) -> tuple[int, int, bool]:
    """(status, bytes that were read, whether the app got the whole body)."""
    read, statuses, whole = 0, [], []
    waiting = iter([*[(piece, True) for piece in body], (b"", False)])
    raw = {**headers, **({} if length is None else {"content-length": length})}

    async def receive() -> dict[str, Any]:
        nonlocal read
        piece, more = next(waiting)
        read += len(piece)
        return {"type": "http.request", "body": piece, "more_body": more}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (message := await receive())["type"] == "http.request":
            if not message["more_body"]:
                whole.append(True)
                await send({"type": "http.response.start", "status": 200, "headers": []})
                await send({"type": "http.response.body", "body": b""})
                return

    scope = {
        "type": "http",
        "path": path,
        "client": ("192.0.2.7", 5),
        "app": SimpleNamespace(state=STATE),
        "headers": [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in raw.items()],
    }
    asyncio.run(BodyGuard(app, SMALL, LARGE)(scope, receive, send))
    (status,) = statuses
    return status, read, bool(whole)


@settings(max_examples=200, deadline=None, database=None, derandomize=True)
@given(
    path=st.sampled_from([PULL, PUSH, ACTIVATE, "/v1/fleet/", "/health"]), odd=odd_headers, length=stated, body=pieces
)
def test_strangers(path: str, odd: dict[str, str], length: str | None, body: list[bytes]) -> None:
    signed = UNKNOWN.headers() if len(odd) % 2 else {}
    status, read, whole = tried(path, {**signed, **odd}, length, body)
    free = path in (ACTIVATE, "/health")  # whose bodies are small and not for registered nodes only
    assert status in ((200, 400, 401, 413) if free else (400, 401, 413))
    assert read <= (SMALL + 400 if free else 0)
    assert not whole or sum(map(len, body)) <= SMALL


@settings(max_examples=200, deadline=None, database=None, derandomize=True)
@given(path=st.sampled_from([PULL, PUSH]), body=pieces)
def test_registered_nodes_have_a_limit(path: str, body: list[bytes]) -> None:
    limit = LARGE if path == PUSH else SMALL
    status, read, whole = tried(path, REGISTERED.headers(), None, body)
    assert (status, whole) == ((200, True) if sum(map(len, body)) <= limit else (413, False))
    assert read <= limit + 400
