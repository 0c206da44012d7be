"""What happens in a deployment, as JSON lines: one object per event, in a file of the run directory and on stdout."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedrbn.evaluation.records import RoundRecord
    from fedrbn.federated.assemble import Assembly
    from fedrbn.federated.protocol import Result


class EventLog:
    """Writes events: `log("joined", client="pen-0", node=…)` becomes one line with the time and the event's name."""

    def __init__(self, path: Path, *, echo: bool = True) -> None:
        self.path = path
        self.echo = echo

    def __call__(self, event: str, **facts: Any) -> None:
        """Write one event."""
        line = json.dumps({"time": round(time.time(), 3), "event": event, **facts}, ensure_ascii=False)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
        if self.echo:
            sys.stdout.write(line + "\n")
            sys.stdout.flush()


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
