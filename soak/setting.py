"""The tiny run that is broken repeatedly, and the comparison of two runs."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedrbn import config
from fedrbn.config import Experiment

SETTINGS: dict[str, dict[str, Any]] = {
    "federation": {"users_per_domain": 2, "at": 0.5, "fraction": 0.03, "test_samples": 8},
    "model": {"width": 1 / 16},
    "train": {"rounds": 3, "validate_every": 1, "lr": 0.05},
    "attack": {"steps": 2},
    "run": {"workers": 1},
}
"""Ten users with 15 training images each; three rounds, of which validation selects one."""


def experiment(**run: Any) -> Experiment:
    """The run, with settings of [run] on top."""
    return config.make(config.with_settings(SETTINGS, [("run", key, value) for key, value in run.items()]))


@dataclass(frozen=True)
class Row:
    """A line of the table."""

    fault: str
    tried: int
    happened: str
    lost: str = "nothing"


class LostError(AssertionError):
    """A run did not end as it should have: the soak has found a bug."""


def fingerprint(path: Path) -> dict[str, str]:
    """Everything that a run produces except its duration: digests of weights and answers, and its records."""
    found = {
        name: hashlib.sha256((path / name).read_bytes()).hexdigest()
        for name in ("last.safetensors", "best.safetensors", "answers/0.safetensors")
    }
    for name in ("rounds.jsonl", "evaluations.jsonl"):
        records = [json.loads(line) for line in (path / name).read_text().splitlines()]
        found[name] = json.dumps([_without_seconds(record) for record in records])
    return found


def ensure_same(path: Path, expected: dict[str, str], what: str) -> None:
    """Raise LostError unless the run is byte for byte the expected one, except for durations."""
    found = fingerprint(path)
    different = [name for name, value in expected.items() if found[name] != value]
    if different:
        raise LostError(f"got another {different[0]} in {path} after {what}; expected that of the uninterrupted run.")


def _without_seconds(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_seconds(inner) for key, inner in value.items() if key != "seconds"}
    return [_without_seconds(inner) for inner in value] if isinstance(value, list) else value


def fork(work: Callable[[], object], log: Path) -> int:
    """Do the work in a child process with its own group; returns its process id. Its exit code is 0, or 1 on an error.

    A child starts with everything imported, so that it is killed during training and not during imports.
    """
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        os.setsid()
        handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        work()
        status = 0
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(status)


def wait(pid: int) -> int:
    """The exit code of a child; the negative signal number if it was killed."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
