"""A process together with everything it has started, ended by pid and never by name.

Flower's SuperLink and SuperNodes start further processes, some of them in their own sessions, so neither the first pid
nor its process group is enough to end them all.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fedrbn.errors import DeployError

PAUSE = 0.1


@dataclass(frozen=True)
class ProcessIdentity:
    """A process by pid and start time. The start time distinguishes it from a later process with the same pid."""

    pid: int
    started: str


@dataclass(frozen=True)
class Running:
    """A process that was started here, and the file its output goes to."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    offset: int = 0
    """Where its output starts in the file, after that of earlier processes."""

    @property
    def pid(self) -> int:
        """The process id."""
        return self.process.pid

    def alive(self) -> bool:
        """Whether it is still running."""
        return self.process.poll() is None

    def tail(self, lines: int = 15) -> str:
        """The end of its output."""
        own = self.log.read_bytes()[self.offset :]
        return "\n".join(own.decode(errors="replace").splitlines()[-lines:])


def launch(name: str, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> Running:
    """Start a process whose output goes to a file; Ctrl-C in the terminal does not reach it, the caller must end it."""
    with log.open("ab") as output:
        offset = output.tell()
        process = subprocess.Popen(  # noqa: S603  (the command is one of our own scripts)
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            start_new_session=True,
        )
    return Running(name, process, log, offset)


def family(pid: int) -> set[ProcessIdentity]:
    """The process that was launched with this pid, the rest of its process group, and all their descendants.

    A descendant whose parent has ended still belongs to the group; one that left the group still has its parent.
    """
    table = _process_table()
    found = {row.who for row in table if pid in (row.who.pid, row.group)}
    while True:
        pids = {member.pid for member in found}
        grown = found | {row.who for row in table if row.parent in pids}
        if grown == found:
            return found
        found = grown


def stop(running: Sequence[Running], patience: float = 10.0) -> None:
    """Ask the processes to end, wait for them and for everything they have started, and kill what is left."""
    families = {member for one in running for member in family(one.pid)}
    for one in running:
        if one.alive():
            one.process.terminate()
    left = _wait_for_end(running, families, patience)
    for member in left:
        _signal(member.pid, signal.SIGKILL)
    if _wait_for_end(running, left, patience):
        names = ", ".join(f"{one.name} ({one.pid})" for one in running)
        raise DeployError(f"got processes that do not end after SIGKILL, started by {names}; look at them with ps.")


def kill(running: Running) -> None:
    """End a process and everything it has started immediately, as if its machine had lost power."""
    members = family(running.pid)
    for member in members:
        _signal(member.pid, signal.SIGKILL)
    _wait_for_end([running], members, 10.0)


def alive(members: set[ProcessIdentity]) -> set[ProcessIdentity]:
    """The processes that are still running."""
    return members & {row.who for row in _process_table()}


def _wait_for_end(running: Sequence[Running], members: set[ProcessIdentity], patience: float) -> set[ProcessIdentity]:
    """The processes that are still running after `patience` seconds."""
    deadline = time.monotonic() + patience
    while True:
        left = alive(members)
        if not left:
            for one in running:
                one.process.wait()  # removes the zombie
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(PAUSE)


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):  # it may have ended in the meantime
        os.kill(pid, number)


@dataclass(frozen=True)
class _Row:
    who: ProcessIdentity
    parent: int
    group: int


def _process_table() -> list[_Row]:
    """Every process on the system that has not ended."""
    columns = "pid=,ppid=,pgid=,stat=,lstart="
    listing = subprocess.run(["ps", "-axo", columns], capture_output=True, text=True, check=True)  # noqa: S603, S607
    rows = (line.split(maxsplit=4) for line in listing.stdout.splitlines())
    return [
        _Row(ProcessIdentity(int(pid), started), int(parent), int(group))
        for pid, parent, group, state, started in rows
        if not state.startswith("Z")
    ]
