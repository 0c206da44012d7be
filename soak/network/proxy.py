"""A TCP proxy that behaves like a bad network: latency, stalls, resets and connections that close early.

    python -m soak.network.proxy HOST:PORT TO_HOST:TO_PORT --seed 1 --counts FILE

The fate of a connection is drawn when it is opened, from the seed and its number. Bytes are passed on unchanged, so TLS
stays intact.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import socket
import struct
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

LATENCY = 0.1
"""Seconds each way."""
RESETS, ENDS, STALLS = 1 / 20, 1 / 40, 1 / 20
"""Shares of the connections that are reset (RST), closed (FIN) in the middle, and stall."""
STALL = (5.0, 35.0)
"""Seconds; Flower waits 30 for an answer."""
_CHUNK = 16 * 1024


@dataclass(frozen=True)
class Fate:
    """What happens to a connection after this many bytes in both directions together."""

    kind: str
    after: float = 0.0
    seconds: float = 0.0


def fate(seed: int, number: int) -> Fate:
    """The fate of the connection with this number: between the handshake and the weights of a whole network."""
    drawn = np.random.default_rng([seed, number])
    luck, after = drawn.random(), 10 ** drawn.uniform(2, 5.5)
    if luck < RESETS:
        return Fate("reset", after)
    if luck < RESETS + ENDS:
        return Fate("closed", after)
    if luck < RESETS + ENDS + STALLS:
        return Fate("stalled", after, drawn.uniform(*STALL))
    return Fate("passed")


class Connection:
    """One connection of a node, and the corresponding one to the server."""

    def __init__(self, doomed: Fate, counts: Counter[str]) -> None:
        self.fate = doomed
        self.counts = counts
        self.bytes = 0
        self.struck = doomed.kind == "passed"
        self.resumes = 0.0

    async def serve(self, near: tuple[asyncio.StreamReader, asyncio.StreamWriter], host: str, port: int) -> None:
        """Pass everything on until one side ends or the drawn fault happens."""
        reader, writer = near
        writers = [writer]
        try:
            far_reader, far_writer = await asyncio.wait_for(asyncio.open_connection(host, port), 60)
            writers.append(far_writer)
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pass(reader, far_writer))
                both.create_task(self._pass(far_reader, writer))
        except* (OSError, TimeoutError):
            self.counts["broken"] += 1  # by a link that was cut, or by the drawn fault
            for each in writers:
                if self.fate.kind != "closed":
                    _reset(each)
        finally:
            for each in writers:
                each.close()
                with suppress(OSError):
                    await each.wait_closed()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass on one direction, each piece with a delay."""
        clock = asyncio.get_running_loop().time
        waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(64)

        async def read() -> None:
            while True:
                piece = await reader.read(_CHUNK)
                await waiting.put((clock() + LATENCY, piece))
                if not piece:
                    return

        async with asyncio.TaskGroup() as both:
            both.create_task(read())
            while True:
                due, piece = await waiting.get()
                await asyncio.sleep(max(due, self.resumes) - clock())
                if not piece:
                    break
                self._count(len(piece), clock())
                writer.write(piece)
                await writer.drain()
        with suppress(OSError):
            writer.write_eof()

    def _count(self, size: int, now: float) -> None:
        self.bytes += size
        self.counts["bytes"] += size
        if self.struck or self.bytes < self.fate.after:
            return
        self.struck = True
        self.counts[self.fate.kind] += 1
        if self.fate.kind == "stalled":
            self.resumes = now + self.fate.seconds
        else:
            raise ConnectionResetError(self.fate.kind)


def _reset(writer: asyncio.StreamWriter) -> None:
    own = writer.get_extra_info("socket")
    with suppress(OSError):
        own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def serve(listen: str, to: str, seed: int, counts: Path) -> None:
    """Serve until SIGTERM; the counts are written every second."""
    counted: Counter[str] = Counter(dict.fromkeys(("connections", "reset", "closed", "stalled", "bytes"), 0))
    host, port = to.rsplit(":", 1)

    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        counted["connections"] += 1
        connection = Connection(fate(seed, counted["connections"]), counted)
        with suppress(ConnectionError):
            await connection.serve((reader, writer), host, int(port))

    own_host, own_port = listen.rsplit(":", 1)
    server = await asyncio.start_server(accepted, own_host, int(own_port))
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    async with server:
        while not ended.is_set():
            counts.write_text(json.dumps(counted), encoding="utf-8")
            with suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), 1.0)
        counts.write_text(json.dumps(counted), encoding="utf-8")


def main() -> None:
    """Parse the command line and serve."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("listen")
    parser.add_argument("to")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--counts", type=Path, required=True)
    options = parser.parse_args()
    asyncio.run(serve(options.listen, options.to, options.seed, options.counts))


if __name__ == "__main__":
    main()
