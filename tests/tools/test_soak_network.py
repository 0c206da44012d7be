"""The bad network of the soak test: what its proxy does to connections, and how a run is explained by its records."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest
from soak.network.proxy import LATENCY, Connection, Fate, fate
from soak.network.replay import ensure_explained
from soak.network.scenario import experiment_for
from soak.setting import LostError

import fedrbn
from fedrbn import config
from fedrbn.deploy.fleet import free_ports

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def test_one_connection_in_twenty_is_reset() -> None:
    """Of 4,000 draws 200 are expected, with a standard deviation of √(4,000 · 0.05 · 0.95) = 13.8; three of them."""
    kinds = Counter(fate(1, number).kind for number in range(4_000))
    assert abs(kinds["reset"] - 200) < 42
    assert abs(kinds["stalled"] - 200) < 42
    assert abs(kinds["closed"] - 100) < 30
    assert fate(1, 7) == fate(1, 7)
    assert [fate(1, n) for n in range(50)] != [fate(2, n) for n in range(50)]


async def _through(doomed: Fate, talk: Talk) -> Counter[str]:
    """Talk to a server that sends everything back, through a connection of this fate."""
    counts: Counter[str] = Counter()
    port, near = free_ports(2)
    ended = [asyncio.Event(), asyncio.Event()]

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while piece := await reader.read(1 << 16):
                writer.write(piece)
        await _closed(writer)
        ended[0].set()

    async def proxied(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await Connection(doomed, counts).serve((reader, writer), "127.0.0.1", port)
        ended[1].set()

    server, proxy = [
        await asyncio.start_server(serve, "127.0.0.1", own) for serve, own in ((echo, port), (proxied, near))
    ]
    async with server, proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", near)
        await asyncio.wait_for(talk(reader, writer), 30)
        await _closed(writer)
        await asyncio.wait_for(asyncio.gather(*(event.wait() for event in ended)), 30)
    return counts


async def _closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


def test_bytes_pass_unchanged_and_late() -> None:
    content = bytes(range(256)) * 400

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        started = time.monotonic()
        writer.write(content)
        writer.write_eof()
        assert await reader.read(1) == content[:1]
        assert time.monotonic() - started > 2 * LATENCY  # there and back
        assert await reader.read() == content[1:]

    counts = asyncio.run(_through(Fate("passed"), talk))
    assert counts == {"bytes": 2 * len(content)}


def test_a_connection_is_reset_after_its_bytes() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(bytes(99))
        assert await reader.readexactly(99) == bytes(99)  # 198 bytes of both directions: one is left
        writer.write(bytes(2))
        with pytest.raises(ConnectionResetError):
            await reader.read()

    assert asyncio.run(_through(Fate("reset", 199), talk))["reset"] == 1


def test_a_connection_ends_without_a_reset() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(bytes(10))
        assert await reader.read() == b""

    assert asyncio.run(_through(Fate("closed", 1), talk))["closed"] == 1


def test_a_stall_holds_everything_back_for_its_time() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        started = time.monotonic()
        writer.write(bytes(10))
        assert await reader.readexactly(10) == bytes(10)
        assert time.monotonic() - started > 1.0

    assert asyncio.run(_through(Fate("stalled", 5, 1.0), talk))["stalled"] == 1


@pytest.mark.slow
def test_records_explain_a_run_or_do_not(tmp_path: Path) -> None:
    """Four clients in two rounds are eight answers; without one of them the weights are others."""
    experiment = config.make(config.with_settings(experiment_for(4).model_dump(), [("train", "rounds", 2)]))
    fedrbn.run(experiment, tmp_path / "run")
    assert ensure_explained(tmp_path / "run", experiment) == 8
    path = tmp_path / "run" / "rounds.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text(json.dumps(lines[0]) + "\n")
    with pytest.raises(LostError, match="rounds"):
        ensure_explained(tmp_path / "run", experiment)
    del lines[0]["clients"]["pen-0"]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(AssertionError, match="not close"):
        ensure_explained(tmp_path / "run", experiment)
