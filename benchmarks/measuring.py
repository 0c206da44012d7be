"""Shared by the benchmarks: processes that take turns, the speed of the machine, rows with targets."""

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
    """A figure and its target; `better` says which direction is better. Without a target it is for information only.

    A figure of None is not available on this processor.
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
    """The machine and its load: figures from a busy machine are unreliable."""
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
    """CPU seconds of a process and its descendants, including those that have ended and were waited for (Linux)."""
    ticks = 0
    for member in family(pid):
        with contextlib.suppress(OSError):  # it has ended in the meantime
            fields = Path(f"/proc/{member.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            ticks += sum(int(field) for field in fields[11:15])  # utime, stime, and those of children
    return ticks / os.sysconf("SC_CLK_TCK")


def quickest(action: Callable[[], object], repeats: int = 5) -> float:
    """CPU seconds of the fastest of several calls, after a warm-up call."""
    action()
    return min(seconds(action) for _ in range(repeats))


def matrix_rate(clock: Callable[[], float] = time.process_time, dtype: torch.dtype = torch.float32) -> float:
    """Floating-point operations per second of one core in products of large matrices, the median of nine."""
    side = 2048
    a, b = torch.rand(2, side, side, generator=torch.Generator().manual_seed(1)).to(dtype)
    return 2 * side**3 / statistics.median(seconds(lambda: a @ b, clock) for _ in range(9))


@contextmanager
def player(make: Make, keep: bool) -> Iterator[Callable[[str], float]]:
    """A separate process that runs one named action at a time and returns its CPU seconds.

    With `keep` it is like a worker of the package, which keeps freed memory for reuse; otherwise it uses the default
    allocator.
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
    """Median CPU seconds of the same action by each player; they take turns, so that other load slows all of them."""
    times = [[ask(name) for ask in players] for _ in range(repeats + 1)][1:]
    return [statistics.median(column) for column in zip(*times, strict=True)]
