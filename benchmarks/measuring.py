"""What the benchmarks share: processes that take turns, the machine's own rates, rows with targets."""

from __future__ import annotations

import contextlib
import json
import multiprocessing as mp
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch

from fedrbn.deploy.processes import family
from fedrbn.hardware import cores, keep_memory

Actions: TypeAlias = Mapping[str, Callable[[], object]]
Make: TypeAlias = Callable[[], Actions]


@dataclass(frozen=True)
class Row:
    """A figure beside its target; `better` says which way, None is for information only.

    A figure of None is one that this processor cannot give.
    """

    what: str
    figure: float | None
    unit: str = ""
    target: float | None = None
    better: str = "more"

    @property
    def verdict(self) -> str:
        """Whether the target was reached."""
        if self.figure is None:
            return "not available on this processor"
        if self.target is None:
            return ""
        reached = self.figure >= self.target if self.better == "more" else self.figure <= self.target
        return "reached" if reached else "not reached"


def show(title: str, rows: Sequence[Row], path: Path, **also: Any) -> None:
    """Print the rows as a table and write them, with the machine and everything else given, as JSON."""
    print(f"\n{title}")
    for row in rows:
        target = "" if row.target is None else f"{'>=' if row.better == 'more' else '<='} {row.target:.4g}"
        figure = "" if row.figure is None else f"{row.figure:.4g}"
        print(f"  {row.what:<62} {figure:>9} {row.unit if figure else '':<7} {target:<9} {row.verdict}")
    content = {"machine": machine(), "rows": [asdict(row) | {"verdict": row.verdict} for row in rows], **also}
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def machine() -> dict[str, Any]:
    """Where and how busy: figures of a busy machine mean little."""
    names = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        if line.startswith("model name")
    ]
    return {
        "processor": names[0] if names else platform.processor(),
        "cores": cores(),
        "load": os.getloadavg()[0],
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def seconds(action: Callable[[], object], clock: Callable[[], float] = time.process_time) -> float:
    """Seconds of one call, of CPU time unless another clock is given."""
    started = clock()
    action()
    return clock() - started


def family_cpu_seconds(pid: int) -> float:
    """Seconds of CPU of a process and its descendants, those included that have ended and were waited for (Linux)."""
    ticks = 0
    for member in family(pid):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            fields = Path(f"/proc/{member.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            ticks += sum(int(field) for field in fields[11:15])  # utime, stime, and those of children
    return ticks / os.sysconf("SC_CLK_TCK")


def quickest(action: Callable[[], object], repeats: int = 5) -> float:
    """CPU seconds of the quickest of several calls, after one to warm up."""
    action()
    return min(seconds(action) for _ in range(repeats))


def matrix_rate(clock: Callable[[], float] = time.process_time) -> float:
    """Floating-point operations per second of one core in products of large float32 matrices, the median of nine."""
    side = 2048
    a, b = torch.rand(2, side, side, generator=torch.Generator().manual_seed(1))
    return 2 * side**3 / statistics.median(seconds(lambda: a @ b, clock) for _ in range(9))


@contextmanager
def player(make: Make, keep: bool) -> Iterator[Callable[[str], float]]:
    """A process of its own that does one named action at a time and says how many CPU seconds it took.

    `keep` makes it a worker as the package has them, which keeps the memory that it frees; else it has the allocator
    as everybody has it.
    """
    line, theirs = mp.get_context("spawn").Pipe()
    process = mp.get_context("spawn").Process(target=_play, args=(theirs, make, keep), daemon=True)
    process.start()

    def ask(name: str) -> float:
        line.send(name)
        return float(line.recv())

    try:
        yield ask
    finally:
        line.send(None)
        process.join(timeout=10)


def _play(line: Any, make: Make, keep: bool) -> None:
    torch.set_num_threads(1)
    if keep:
        keep_memory()
    actions = make()
    while (name := line.recv()) is not None:
        line.send(seconds(actions[name]))


def turns(players: Sequence[Callable[[str], float]], name: str, repeats: int) -> list[float]:
    """Median CPU seconds of the same action by each player; they take turns, so that a busy machine slows all."""
    times = [[ask(name) for ask in players] for _ in range(repeats + 1)][1:]
    return [statistics.median(column) for column in zip(*times, strict=True)]
