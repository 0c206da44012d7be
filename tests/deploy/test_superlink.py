"""Other machines reach the Fleet API and nothing else."""

from __future__ import annotations

import asyncio
import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import uvicorn
from fastapi import FastAPI
from flwr.server.superlink.linkstate.sql_linkstate import SqlLinkState
from flwr.supercore.constant import TaskType
from flwr.supercore.corestate import sql_corestate
from flwr.supercore.date import now

from fedrbn.deploy import superlink
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


@pytest.mark.filterwarnings("ignore:No path_separator found:DeprecationWarning")  # of Flower's own database
@pytest.mark.parametrize(("seconds", "starts"), [(100, True), (130, False)])
def test_a_process_of_the_superlink_may_take_two_minutes_to_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, seconds: int, starts: bool
) -> None:
    """Flower's own 30 s are less than imports take on a busy machine: its server program would never start."""
    monkeypatch.setattr(sql_corestate, "HEARTBEAT_DEFAULT_INTERVAL", 30)  # put back after the test
    config = SimpleNamespace(host="127.0.0.1", port=0, ssl_keyfile=None, ssl_certfile=None)
    monkeypatch.setattr(superlink, "_parse_superlink_lifespan_config", lambda: config)
    monkeypatch.setattr(superlink, "create_app", lambda *_: FastAPI())
    monkeypatch.setattr(uvicorn, "run", lambda **_: None)
    superlink.main()
    state = SqlLinkState(str(tmp_path / "state.sqlite"), cast(Any, SimpleNamespace()), cast(Any, None))
    state.initialize()
    task = state.create_task(TaskType.SERVER_APP, 1)
    assert task is not None
    assert state.claim_task(task) is not None
    later = now() + datetime.timedelta(seconds=seconds)
    monkeypatch.setattr(sql_corestate, "now", lambda: later)
    assert state.activate_task(task) is starts
