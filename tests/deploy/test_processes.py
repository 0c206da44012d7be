"""Processes and all they have started are ended by pid."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from fedrbn.deploy.processes import alive, family, kill, launch, stop

CHILD = "import time; time.sleep(60)"
DETACHED = f"""
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", {CHILD!r}], start_new_session=True)
print("started", flush=True)
time.sleep(60)
"""
STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); time.sleep(60)"
)


def started(tmp_path: Path, code: str, name: str = "one"):  # type: ignore[no-untyped-def]
    running = launch(name, [sys.executable, "-c", code], tmp_path / f"{name}.log", os.environ)
    deadline = time.monotonic() + 20
    while not running.tail() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert running.tail()
    return running


def test_stop_ends_a_process_and_its_detached_child(tmp_path: Path) -> None:
    running = started(tmp_path, DETACHED)
    members = family(running.pid)
    assert len(members) == 2
    stop([running], patience=0.5)
    assert not running.alive()
    assert alive(members) == set()


def test_stop_kills_what_does_not_want_to_end(tmp_path: Path) -> None:
    running = started(tmp_path, STUBBORN)
    stop([running], patience=0.5)
    assert running.process.returncode == -9


def test_kill_is_immediate_and_takes_children_along(tmp_path: Path) -> None:
    running = started(tmp_path, DETACHED)
    members = family(running.pid)
    kill(running)
    assert running.process.returncode == -9
    assert alive(members) == set()


def test_stopping_twice_or_nothing_is_fine(tmp_path: Path) -> None:
    running = started(tmp_path, "print('done')")
    running.process.wait()
    stop([running])
    stop([])
    assert running.tail() == "done"


def test_an_orphan_is_found_by_its_group(tmp_path: Path) -> None:
    code = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {CHILD!r}]); print('started', flush=True)"
    running = started(tmp_path, code)
    running.process.wait()  # the parent has ended, its child has not
    orphans = family(running.pid)
    assert len(orphans) == 1
    stop([running], patience=0.5)
    assert alive(orphans) == set()


def test_output_of_an_earlier_process_in_the_same_log_is_left_out(tmp_path: Path) -> None:
    for word in ("first", "second"):
        running = started(tmp_path, f"print({word!r})")
        running.process.wait()
        assert running.tail() == word
    assert running.log.read_text() == "first\nsecond\n"
