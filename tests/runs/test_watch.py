"""Follow a run by the files it writes: what is seen when, and how it ends."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fedrbn.cli import app
from fedrbn.config import Experiment
from fedrbn.errors import StorageError
from fedrbn.runs.directory import RunDirectory
from fedrbn.runs.watch import RunStage, follow, planned_rounds
from fedrbn.types import Member, Role


@pytest.fixture
def begun(trained: Path, tmp_path: Path) -> RunDirectory:
    """The directory of a run of four rounds that has not finished any."""
    path = tmp_path / "begun"
    path.mkdir()
    for name in ("config.toml", "federation.json"):
        shutil.copy(trained / name, path)
    return RunDirectory.open(path)


def rounds(trained: Path) -> list[dict[str, Any]]:
    return RunDirectory.open(trained).records("rounds.jsonl")


def steps(*actions: Callable[[], object]) -> Callable[[float], None]:
    """A clock whose every tick lets the writer do the next thing."""
    left: Iterator[Callable[[], object]] = iter(actions)
    return lambda _: next(left, lambda: None)() and None


def test_every_round_is_seen_and_the_end(begun: RunDirectory, trained: Path) -> None:
    first, second, third, fourth = rounds(trained)
    half = json.dumps(second)[:40]
    with ExitStack() as stack:
        stack.enter_context(begun.locked())
        clock = steps(
            lambda: begun.append("rounds.jsonl", first),
            lambda: _write(begun, half),
            lambda: _write(begun, json.dumps(second)[40:] + "\n"),
            lambda: [begun.append("rounds.jsonl", record) for record in (third, fourth)],
            lambda: begun.append("evaluations.jsonl", {"mean": {}}),
        )
        seen = [(status.history.finished, status.stage) for status in follow(begun.path, sleep=clock)]
    # half a line is no round, so nothing is shown for it
    assert seen == [
        (0, RunStage.TRAINING),
        (1, RunStage.TRAINING),
        (2, RunStage.TRAINING),
        (4, RunStage.EVALUATING),
        (4, RunStage.FINISHED),
    ]


def _write(directory: RunDirectory, text: str) -> None:
    with (directory.path / "rounds.jsonl").open("a") as file:
        file.write(text)


def test_a_thread_writes_while_we_look(begun: RunDirectory, trained: Path) -> None:
    started = threading.Event()

    def write() -> None:
        with begun.locked():
            started.set()
            for record in rounds(trained):
                begun.append("rounds.jsonl", record)
            begun.append("evaluations.jsonl", {"mean": {}})

    writer = threading.Thread(target=write)
    writer.start()
    started.wait(10)
    *_, last = follow(begun.path, every=0.01)
    writer.join(10)
    assert last.stage is RunStage.FINISHED
    assert [own.round for own in last.history.entries] == [1, 2, 3, 4]


def test_a_run_that_nobody_trains_is_said_not_to_be_alive(begun: RunDirectory, trained: Path) -> None:
    begun.append("rounds.jsonl", rounds(trained)[0])
    waits: list[float] = []
    (last,) = follow(begun.path, every=0.5, sleep=waits.append)
    assert (last.stage, last.history.finished, last.history.rounds) == (RunStage.STOPPED, 1, 4)
    assert waits == [0.5]  # it is looked at a second time: it might just have been starting


def test_a_run_that_starts_between_two_looks_is_followed(begun: RunDirectory) -> None:
    with ExitStack() as stack:
        clock = steps(
            lambda: stack.enter_context(begun.locked()), lambda: begun.append("evaluations.jsonl", {"mean": {}})
        )
        seen = [status.stage for status in follow(begun.path, sleep=clock)]
    assert seen == [RunStage.TRAINING, RunStage.FINISHED]


def test_a_run_that_is_resumed_forgets_the_rounds_it_lost(begun: RunDirectory, trained: Path) -> None:
    first, second, *_ = rounds(trained)
    with begun.locked():
        begun.append("rounds.jsonl", first)
        begun.append("rounds.jsonl", second)
        clock = steps(
            lambda: (begun.path / "rounds.jsonl").write_text(json.dumps(first) + "\n"),
            lambda: begun.append("evaluations.jsonl", {"mean": {}}),
        )
        assert [status.history.finished for status in follow(begun.path, sleep=clock)] == [2, 1, 1]


def test_why_it_stopped_is_told(begun: RunDirectory) -> None:
    failures = [{"client": "pen-0", "round": 1, "cause": "out of memory"}]
    begun.append("stops.jsonl", {"round": 1, "failures": failures})
    (last,) = follow(begun.path, sleep=lambda _: None)
    assert last.cause == "pen-0: out of memory"


def test_held_while_locked(begun: RunDirectory) -> None:
    assert not begun.held()  # there is no lock file yet, and none is made
    assert not (begun.path / ".lock").exists()
    with begun.locked():
        assert begun.held()
    assert not begun.held()


def test_rounds_of_free_training_are_fewer(tiny: Callable[..., Experiment]) -> None:
    members = (Member("a", "x", Role.AT.duty, 8), Member("b", "x", Role.ST.duty, 8))
    assert planned_rounds(tiny(train={"rounds": 7}), members) == 7
    free = tiny(train={"rounds": 7}, method={"name": "fatbn-free", "replays": 2})
    assert planned_rounds(free, members) == 4  # ⌈7 / 2⌉


def test_no_run_no_following(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="holds no run"):
        next(follow(tmp_path))


def test_watching_a_finished_run_shows_its_evaluation(trained: Path) -> None:
    shown = CliRunner().invoke(app, ["watch", str(trained)])
    assert shown.exit_code == 0, shown.output
    assert "mean over users" in shown.stdout
    lines = [line for line in shown.stderr.splitlines() if ": round " in line]
    assert [line.split("  ")[0] for line in lines] == [f"trained: round {n}/4" for n in (1, 2, 3, 4)]


def test_watching_a_dead_run_names_the_remedy(begun: RunDirectory) -> None:
    shown = CliRunner().invoke(app, ["watch", str(begun.path), "--every", "0.1"])
    assert shown.exit_code == 1
    assert shown.stdout == ""
    assert "has stopped: 0 of 4 rounds are finished" in shown.stderr
    assert f"fedrbn run --resume {begun.path}" in shown.stderr
