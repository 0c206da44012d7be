"""Training killed (SIGKILL) at random moments and at every step of writing: it ends with the same bytes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedrbn.data.samples import DataSet, Federation
from fedrbn.runs import train as runs
from soak.setting import SETTINGS, LostError, Row, ensure_same, experiment, fingerprint, fork, wait

Data = DataSet | Federation


def train(path: Path, data: Data | None = None) -> None:
    """Start the run or resume it."""
    if (path / "config.toml").exists():
        runs.resume(path, data=data)
    else:
        runs.run(experiment(), path, data=data)


def reference(folder: Path, data: Data | None = None) -> tuple[dict[str, str], float]:
    """The fingerprint of the undisturbed run, and its duration in seconds."""
    folder.mkdir(parents=True)
    started = time.perf_counter()
    finish(folder / "whole", data, folder)
    return fingerprint(folder / "whole"), time.perf_counter() - started


def finish(path: Path, data: Data | None, folder: Path) -> None:
    """Let the run finish."""
    if wait(fork(partial(train, path, data), folder / "log")) != 0:
        raise LostError(f"got a run that cannot be continued: see {folder / 'log'}; expected it to end.")


def at_random_moments(folder: Path, data: Data, kills: int, random: np.random.Generator) -> Row:
    """Kill the run repeatedly; whenever it finishes, compare it and start another."""
    expected, seconds = reference(folder, data)
    killed = finished = 0
    while killed < kills:
        path = folder / f"run-{finished}"
        pid = fork(partial(train, path, data), folder / "log")
        if _ended(pid, random.uniform(0, seconds)):
            ensure_same(path, expected, "several kills")
            finished += 1
            continue
        os.kill(pid, signal.SIGKILL)
        wait(pid)
        killed += 1
    finish(folder / f"run-{finished}", data, folder)
    ensure_same(folder / f"run-{finished}", expected, "several kills")
    return Row(
        "training killed (SIGKILL) at a random moment",
        killed,
        f"resumed; the {finished + 1} interrupted runs ended with the same bytes",
    )


def _ended(pid: int, seconds: float) -> bool:
    """Wait this long; returns whether the child has ended by itself."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if os.waitpid(pid, os.WNOHANG)[0]:
            return True
        time.sleep(0.005)
    return False


def at_every_step_of_writing(folder: Path, data: Data, most: int, random: np.random.Generator) -> Row:
    """Kill the run inside each of its writes, before each sync and before each rename, one after another."""
    expected, _ = reference(folder, data)
    counted = folder / "steps"
    wait(fork(partial(_counting, folder / "counted", data, counted), folder / "log"))
    total = int(counted.read_text())
    chosen = sorted(random.choice(total, size=min(most, total), replace=False).tolist())
    for number in chosen:
        path = folder / f"step-{number}"
        if wait(fork(partial(_dying, path, data, number), folder / "log")) != -signal.SIGKILL:
            raise LostError(f"got a run that was not killed at step {number} of {total}; expected it to be.")
        finish(path, data, folder)
        ensure_same(path, expected, f"a kill at step {number} of writing")
    return Row(
        "training killed inside a write, before a sync or before a rename",
        len(chosen),
        f"resumed to the same bytes, after a kill at {len(chosen)} of the {total} write steps of a run",
    )


def _counting(path: Path, data: Data, result: Path) -> None:
    steps = _Steps(None)
    train(path, data)
    result.write_text(str(steps.seen))


def _dying(path: Path, data: Data, number: int) -> None:
    _Steps(number)
    train(path, data)


class _Steps:
    """Counts the write steps of this process, and kills it at one of them; in a write, when half of it is done."""

    def __init__(self, fatal: int | None) -> None:
        self.fatal = fatal
        self.seen = 0
        fdopen = os.fdopen
        os.fsync = self._before(os.fsync)
        os.replace = self._before(os.replace)
        os.fdopen = lambda *given: _Torn(fdopen(*given), self)  # type: ignore[assignment]

    def due(self) -> bool:
        self.seen += 1
        return self.fatal is not None and self.seen - 1 == self.fatal

    def _before(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*given: Any, **named: Any) -> Any:
            if self.due():
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*given, **named)

        return counted


class _Torn:
    """A file whose write can kill its process."""

    def __init__(self, file: Any, steps: _Steps) -> None:
        self.file, self.steps = file, steps

    def write(self, content: bytes) -> int:
        if self.steps.due():
            self.file.write(content[: len(content) // 2])
            self.file.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        written: int = self.file.write(content)
        return written

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def __enter__(self) -> _Torn:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()


def by_another_creator(folder: Path, data: Data, tries: int) -> Row:
    """Two processes start a run in the same directory at the same time: one trains, the other is rejected."""
    expected, _ = reference(folder, data)
    for number in range(tries):
        path = folder / f"both-{number}"
        begin = partial(runs.run, experiment(), path, data=data)
        ended = sorted(wait(pid) for pid in [fork(begin, folder / "log") for _ in range(2)])
        if ended != [0, 1]:
            raise LostError(f"got exit codes {ended} of two runs in one directory; expected one run and one error.")
        ensure_same(path, expected, "a second creator")
    return Row("two processes start in the same run directory at once", tries, "one trains, the other is rejected")


def of_the_whole_group(folder: Path, kills: int, random: np.random.Generator) -> Row:
    """`fedrbn run` with two worker processes, all of them killed at once after it has started to write."""
    expected, _ = reference(folder)
    options = [
        option
        for section, values in SETTINGS.items()
        for key, value in values.items()
        if key != "workers"
        for option in ("--set", f"{section}.{key}={value}")
    ]
    command = [sys.executable, "-c", "from fedrbn.cli import main; main()", "run", "--quiet", "--workers", "2"]
    killed = 0
    for number in range(kills):
        path = folder / f"group-{number}"
        with (folder / "log").open("a") as log:
            process = subprocess.Popen(  # noqa: S603  (our own command)
                [*command, *options, "--out", str(path)], start_new_session=True, stdout=log, stderr=log
            )
        wanted = int(random.integers(0, 3))
        while process.poll() is None and _lines(path / "rounds.jsonl") < wanted:
            time.sleep(0.005)
        time.sleep(random.uniform(0, 0.5))
        if process.poll() is None:
            killed += 1
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        finish(path, None, folder)
        ensure_same(path, expected, "a kill of the process group")
    return Row(
        "fedrbn run with two worker processes, the process group killed",
        killed,
        "resumed in one process to the same bytes",
    )


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0
