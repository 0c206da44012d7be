"""Other machines reach the Fleet API and nothing else."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fedrbn.deploy.superlink import FleetOnly, admitted, is_local


def scope(path: str, client: tuple[str, int] | None, kind: str = "http") -> dict[str, Any]:
    return {"type": kind, "path": path, "client": client, "method": "POST", "headers": []}


@pytest.mark.parametrize("address", ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"])
def test_loopback_addresses_are_local(address: str) -> None:
    assert is_local(address)


@pytest.mark.parametrize("address", ["192.0.2.7", "::ffff:192.0.2.7", "fd00::2", "", "localhost"])
def test_everything_else_is_foreign(address: str) -> None:
    assert not is_local(address)


@pytest.mark.parametrize(
    "path", ["/v1/control/start-run", "/v1/control/register-node", "/v1/runtime/responses", "/docs"]
)
def test_strangers_may_not_command(path: str) -> None:
    assert not admitted(scope(path, ("192.0.2.7", 5)))
    assert not admitted(scope(path, None))
    assert not admitted(scope(path, ("192.0.2.7", 5), "websocket"))
    assert admitted(scope(path, ("127.0.0.1", 5)))


@pytest.mark.parametrize("path", ["/v1/fleet/pull-messages", "/health"])
def test_strangers_may_ask_the_fleet_api(path: str) -> None:
    assert admitted(scope(path, ("192.0.2.7", 5)))


def test_paths_that_only_resemble_the_fleet_api_are_refused() -> None:
    for path in ("/v1/fleet", "//v1/fleet/x", "/v1/control/../fleet/x", "/v1/RunningFleet/x"):
        assert not admitted(scope(path, ("192.0.2.7", 5)))


def test_a_refused_request_gets_403_and_does_not_reach_the_app() -> None:
    reached: list[str] = []
    sent: list[dict[str, Any]] = []

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        reached.append(scope["path"])

    async def receive() -> dict[str, Any]:
        return {"type": "http.request"}

    async def send(message: Any) -> None:
        sent.append(message)

    gate = FleetOnly(inner)
    asyncio.run(gate(scope("/v1/control/start-run", ("192.0.2.7", 5)), receive, send))
    assert (reached, sent[0]["status"]) == ([], 403)
    asyncio.run(gate(scope("/v1/fleet/get-run", ("192.0.2.7", 5)), receive, send))
    assert reached == ["/v1/fleet/get-run"]
