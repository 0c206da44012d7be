"""Processes that make the same run directory at the same moment: one gets it, the others are told."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

import pytest

from fedrbn import config
from fedrbn.errors import StorageError
from fedrbn.runs.directory import RunDirectory

SEEDS = (1, 2, 3, 4)


def create(path: Path, seed: int, force: bool, ready: Any, told: Any) -> None:
    """Wait for the others, then make the directory and keep it for a moment."""
    experiment = config.make({"run": {"seed": seed}})
    ready.wait()
    try:
        with RunDirectory.creating(path, experiment, force=force) as run:
            ready.wait(timeout=30)  # until all the others have tried
            told.put((seed, run.experiment().run.seed, RunDirectory.open(path).experiment().run.seed))
    except StorageError as error:
        told.put((seed, None, str(error)))
        ready.wait(timeout=30)


@pytest.mark.parametrize("force", [False, True], ids=["new", "with force"])
def test_one_of_many_gets_the_directory(force: bool, tmp_path: Path) -> None:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["fedrbn.runs.directory"])
    for attempt in range(10):
        path = tmp_path / str(attempt)
        if force:
            RunDirectory.create(path, config.make({}))
        ready, told = context.Barrier(len(SEEDS)), context.Queue()
        processes = [context.Process(target=create, args=(path, seed, force, ready, told)) for seed in SEEDS]
        for process in processes:
            process.start()
        answers = [told.get(timeout=60) for _ in SEEDS]
        for process in processes:
            process.join()
        winners = [answer for answer in answers if answer[1] is not None]
        assert len(winners) == 1
        seed, own, on_disk = winners[0]
        assert seed == own == on_disk == RunDirectory.open(path).experiment().run.seed
        for _, _, message in (answer for answer in answers if answer[1] is None):
            assert "another process is using" in message or "already holds a run" in message


def test_a_directory_that_appears_while_it_is_looked_at_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, is_dir = tmp_path / "run", Path.is_dir

    def appearing(each: Path) -> bool:
        found = is_dir(each)
        if not path.exists():
            path.mkdir()  # by another process, just after this one looked
        return found

    monkeypatch.setattr(Path, "is_dir", appearing)
    RunDirectory.create(path, config.make({}))
    assert (path / "config.toml").is_file()


def test_a_place_that_is_no_run_gets_no_lock(tmp_path: Path) -> None:
    (tmp_path / "cat.jpg").touch()
    with pytest.raises(StorageError, match="not empty and not a run"):
        RunDirectory.create(tmp_path, config.make({}))
    assert [path.name for path in tmp_path.iterdir()] == ["cat.jpg"]
