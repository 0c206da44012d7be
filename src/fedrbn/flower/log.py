"""The events of a deployment as JSON lines: one object per event, in a file in the run directory and on stdout."""

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

    The file contains only whole lines. If the disk is full, the run does not stop because of an event: the event is
    printed to stdout with the reason. Code that cannot continue without the disk raises its own error.
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
            with suppress(OSError):  # stdout may be a file on the same disk
                sys.stdout.write(_line(content) + "\n")
                sys.stdout.flush()


def _line(content: dict[str, Any]) -> str:
    return json.dumps(content, ensure_ascii=False)


def _append(path: Path, line: bytes) -> None:
    """Append a line completely or not at all."""
    with path.open("ab", buffering=0) as file:
        end = file.seek(0, os.SEEK_END)
        try:
            while line:
                line = line[file.write(line) :]
        except OSError:
            file.truncate(end)
            raise


def _drop_cut_off_line(path: Path) -> None:
    """Remove a partial last line from a writer that was killed: the next line would be joined to it."""
    content = path.read_bytes() if path.exists() else b""
    if not content.endswith(b"\n") and content:
        os.truncate(path, content.rfind(b"\n") + 1)


class RoundLog:
    """A `Watcher` that writes an event for each round and for each newly flagged client."""

    def __init__(self, log: EventLog) -> None:
        self.log = log
        self.flagged: dict[str, str] = {}

    def training(self, assembly: Assembly, finished: int) -> None:
        """See `Watcher`; the server's log already has this."""

    def answered(self, result: Result) -> None:
        """See `Watcher`; answers from the network are logged where they arrive."""

    def round_finished(self, record: RoundRecord) -> None:
        """Log who took part, how long it took, and any findings."""
        line = record.to_json()
        flagged: dict[str, str] = line.get("flagged", {})
        for client in flagged.keys() - self.flagged.keys():
            self.log("flagged", client=client, reason=flagged[client])
        self.flagged = flagged
        noted = {key: line[key] for key in ("validation", "failures", "warning", "barred", "silenced") if key in line}
        self.log("round", round=record.round, seconds=round(record.seconds, 3), took_part=[*record.clients], **noted)

    def evaluating(self, clients: int) -> None:
        """Log the start of the final evaluation."""
        self.log("evaluating", clients=clients)


def events(path: Path, event: str | None = None) -> list[dict[str, Any]]:
    """The events of a file, all or those with one name; a partial last line is left out."""
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    found = [json.loads(line) for line in lines]
    return [item for item in found if event is None or item["event"] == event]
