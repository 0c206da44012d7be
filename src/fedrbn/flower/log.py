"""What happens in a deployment, as JSON lines: one object per event, in a file of the run directory and on stdout."""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedrbn.evaluation.records import RoundRecord
    from fedrbn.federated.assemble import Assembly
    from fedrbn.federated.protocol import Result


class EventLog:
    """Writes events: `log("joined", client="pen-0", node=…)` becomes one line with the time and the event's name.

    The file holds whole lines only. An event that a full disk has no room for is not worth the run: it is on stdout,
    with the reason, and what cannot go on without the disk says so itself.
    """

    def __init__(self, path: Path, *, echo: bool = True) -> None:
        self.path = path
        self.echo = echo
        _drop_cut_off_line(path)

    def __call__(self, event: str, **facts: Any) -> None:
        """Write one event."""
        content = {"time": round(time.time(), 3), "event": event, **facts}
        try:
            _append(self.path, f"{_line(content)}\n".encode())
        except OSError as error:
            content["unwritten"] = str(error)
        if self.echo:
            with suppress(OSError):  # it may be on the same disk
                sys.stdout.write(_line(content) + "\n")
                sys.stdout.flush()


def _line(content: dict[str, Any]) -> str:
    return json.dumps(content, ensure_ascii=False)


def _append(path: Path, line: bytes) -> None:
    """Add all of a line or nothing of it."""
    with path.open("ab", buffering=0) as file:
        end = file.seek(0, os.SEEK_END)
        try:
            while line:
                line = line[file.write(line) :]
        except OSError:
            file.truncate(end)
            raise


def _drop_cut_off_line(path: Path) -> None:
    """Remove what a writer that was killed has left of its last line: the next one would be joined to it."""
    content = path.read_bytes() if path.exists() else b""
    if not content.endswith(b"\n") and content:
        os.truncate(path, content.rfind(b"\n") + 1)


class RoundLog:
    """A `Watcher` of runs that writes an event for each round, and one for each client that is newly flagged."""

    def __init__(self, log: EventLog) -> None:
        self.log = log
        self.flagged: dict[str, str] = {}

    def training(self, assembly: Assembly, finished: int) -> None:
        """See `Watcher`; the server's log says this in other words."""

    def answered(self, result: Result) -> None:
        """See `Watcher`; what comes over the network is logged where it comes in."""

    def round_finished(self, record: RoundRecord) -> None:
        """Who took part, how long it took, and what was noticed."""
        line = record.to_json()
        flagged: dict[str, str] = line.get("flagged", {})
        for client in flagged.keys() - self.flagged.keys():
            self.log("flagged", client=client, reason=flagged[client])
        self.flagged = flagged
        noted = {key: line[key] for key in ("validation", "failures", "warning", "barred", "silenced") if key in line}
        self.log("round", round=record.round, seconds=round(record.seconds, 3), took_part=[*record.clients], **noted)

    def evaluating(self, clients: int) -> None:
        """The last evaluation starts."""
        self.log("evaluating", clients=clients)


def events(path: Path, event: str | None = None) -> list[dict[str, Any]]:
    """The events of a file, all or those of one name; a last line that was cut off is left out."""
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    found = [json.loads(line) for line in lines]
    return [item for item in found if event is None or item["event"] == event]
