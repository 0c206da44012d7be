"""The bad network of the soak test: what its proxy does to connections, and how a run is explained by its records."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from soak.network.proxy import LATENCY, Connection, Fate, fate
from soak.network.scenario import experiment_for
from soak.replay import ensure_explained, replayed, split_at_descents
from soak.setting import LostError

import fedrbn
from fedrbn import config
from fedrbn.deploy.fleet import free_ports
from fedrbn.federated.assemble import assemble
from fedrbn.federated.protocol import Job, Result, Round
from fedrbn.federated.server import initial_state, play_round
from fedrbn.runs.directory import RunDirectory
from fedrbn.runs.records import rounds

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
    with pytest.raises(AssertionError, match=r"not (close|equal)"):
        ensure_explained(tmp_path / "run", experiment)


def test_a_client_that_is_asked_again_is_replayed_last(tmp_path: Path) -> None:
    """pen-0 does not answer the first time, so it comes last in each sum; another order rounds differently."""
    faults = [("train", "rounds", 2), ("faults", "on_too_few", "wait"), ("faults", "wait_seconds", 0.01)]
    waiting = [*faults, ("faults", "min_clients", 1.0)]
    experiment = config.make(config.with_settings(experiment_for(4).model_dump(), waiting))
    fedrbn.run(experiment, tmp_path / "undisturbed")
    in_order = rounds(RunDirectory.open(tmp_path / "undisturbed"))
    assembly = assemble(experiment)
    state, records = initial_state(assembly.net, assembly.plan), []
    with assembly.executor() as execute:
        for record in in_order:
            missed: list[str] = []

            def later(round_: Round, jobs: Iterable[Job], missed: list[str] = missed) -> Iterator[Result]:
                yield from execute(round_, [job for job in jobs if job.client != "pen-0" or missed])
                missed.append("pen-0")

            state, report = play_round(state, assembly.plan, later)
            records.append(record.model_copy(update={"clients": report.clients}))
    assert [list(record.clients)[-1] for record in records] == ["pen-0"] * 2
    again, other = replayed(experiment, records), replayed(experiment, in_order)
    assert all(torch.equal(again.shared[name], tensor) for name, tensor in state.shared.items())
    assert not all(torch.equal(other.shared[name], tensor) for name, tensor in state.shared.items())


def test_attempts_are_ascending_runs() -> None:
    assert split_at_descents([0, 2, 3, 1]) == [[0, 2, 3], [1]]
    assert split_at_descents([2, 1, 0]) == [[2], [1], [0]]
    assert split_at_descents([]) == []
