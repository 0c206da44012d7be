"""A run with more rounds ends as if it had been started with them."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path
from typing import Any

import pytest

import fedrbn
from fedrbn import config
from fedrbn.errors import ConfigError, StorageError
from fedrbn.evaluation.records import RoundRecord
from fedrbn.runs import extension
from fedrbn.runs.directory import RunDirectory
from fedrbn.runs.recovery import recover
from fedrbn.runs.store import run_folder
from fedrbn.runs.sweep import SweepCell, complete

SMALL: dict[str, Any] = {
    "data": {"domains": ["plain"], "image_size": 16},
    "federation": {"users_per_domain": 2, "at": 0.5, "fraction": 0.03, "test_samples": 2},
    "model": {"width": 1 / 16},
    "train": {"rounds": 3, "validate_every": 2, "lr": 0.05},
    "attack": {"steps": 1},
    "method": {"name": "fedrob", "affine_steps": 1},
    "run": {"workers": 1},
}
"""Three rounds, of which the second is validated because of validate_every and the third because it is the last; with
five rounds the third would not be. Clients of fedrob remember something from round to round."""


def small(rounds: int = 3, **sections: dict[str, Any]) -> config.Experiment:
    settings = [(section, key, value) for section, given in sections.items() for key, value in given.items()]
    return config.make(config.with_settings(SMALL, [*settings, ("train", "rounds", rounds)]))


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of three rounds. Do not write into it."""
    path = tmp_path_factory.mktemp("extension") / "three"
    fedrbn.run(small(), path)
    return path


def without_times(line: dict[str, Any]) -> dict[str, Any]:
    clients = {name: {k: v for k, v in own.items() if k != "seconds"} for name, own in line["clients"].items()}
    return {**line, "clients": clients, "seconds": 0}


def test_an_extended_run_is_one_that_was_started_with_more_rounds(three: Path, tmp_path: Path) -> None:
    extended, whole = tmp_path / "extended", tmp_path / "whole"
    shutil.copytree(three, extended)
    seen: list[int] = []
    record = fedrbn.resume(extended, rounds=5, on_round=lambda found: seen.append(found.round))
    assert seen == [3, 4, 5], "round 3 was validated only because it was the last: it is trained again"
    assert record == fedrbn.run(small(5), whole)
    ours, theirs = RunDirectory.open(extended), RunDirectory.open(whole)
    assert ours.experiment() == theirs.experiment()
    for name in ("last.safetensors", "last.previous.safetensors", "best.safetensors"):
        assert ours.folder.read(name) == theirs.folder.read(name), name
    lines = [[without_times(line) for line in run.records("rounds.jsonl")] for run in (ours, theirs)]
    assert lines[0] == lines[1]
    assert len(ours.records("evaluations.jsonl")) == 1
    rows = list(csv.DictReader((extended / "rounds.csv").read_text(encoding="utf-8").splitlines()))
    assert [row["round"] for row in rows] == ["1", "2", "3", "4", "5"]
    assert [bool(row["score"]) for row in rows] == [False, True, False, True, True]
    assert fedrbn.resume(extended, rounds=5, on_round=lambda found: seen.append(found.round)) == record
    assert seen == [3, 4, 5], "nothing is trained again"


def test_an_interrupted_extension_is_completed_by_repeating_it(
    three: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worst moment: some checkpoints are of five rounds already, the config is of three."""
    path = tmp_path / "run"
    shutil.copytree(three, path)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(RunDirectory, "change_settings", killed)
        with pytest.raises(KeyboardInterrupt):
            fedrbn.resume(path, rounds=5)
    with pytest.raises(StorageError, match=r"repeat fedrbn run --resume .*run --rounds N"):
        fedrbn.resume(path)
    with RunDirectory.open(path).locked():
        extension.extend(RunDirectory.open(path), 5)
    directory = RunDirectory.open(path)
    recover(directory)
    last = directory.checkpoint("last")
    assert last is not None
    assert (directory.experiment().train.rounds, last.state.round) == (5, 2)


@pytest.mark.parametrize(
    ("rounds", "settings", "message"),
    [
        (2, {}, r"got --rounds 2 for a run of 3 rounds; .*Start another run with fedrbn run --rounds 2"),
        (5, {"train": {"schedule": "cosine"}}, r"with train\.schedule = 'cosine', whose learning rates depend"),
        (5, {"method": {"name": "finetune", "affine_steps": None}}, r"method 'finetune', whose second phase starts"),
    ],
)
def test_what_would_have_begun_otherwise_is_refused(
    rounds: int, settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    directory = RunDirectory.create(tmp_path / "run", small(**settings))
    with pytest.raises(ConfigError, match=message):
        fedrbn.resume(directory.path, rounds=rounds)


def test_a_store_does_not_give_an_extended_run_for_the_shorter_one(three: Path, tmp_path: Path) -> None:
    experiment = RunDirectory.open(three).experiment()
    assert run_folder(tmp_path, experiment).name == f"fedrob-seed1-{experiment.key()}"
    former = tmp_path / experiment.former_run_name()
    shutil.copytree(three, former)
    assert run_folder(tmp_path, experiment) == former, "runs of earlier versions are found"
    assert complete(SweepCell("", experiment), tmp_path)["key"] == experiment.key()
    with RunDirectory.open(former).locked():
        extension.extend(RunDirectory.open(former), 5)
    with pytest.raises(StorageError, match=r"holds another experiment \(.*differs in train\.rounds"):
        run_folder(tmp_path, experiment)


def test_folders_are_named_by_method_lam_and_seed() -> None:
    name = small(method={"name": "fedrbn", "lam": 0.25, "affine_steps": None}, run={"seed": 7}).run_name()
    assert name.startswith("fedrbn-lam0.25-seed7-")


def test_a_callback_that_raises_stops_the_run_which_can_be_resumed(tmp_path: Path, three: Path) -> None:
    def stop(record: RoundRecord) -> None:
        if record.round == 2:
            raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        fedrbn.run(small(), tmp_path / "run", on_round=stop)
    (tmp_path / "run/rounds.csv").write_text("rubbish\n1,2", encoding="utf-8")  # of a crash: it is derived anyway
    fedrbn.resume(tmp_path / "run")
    kept = [line.split(",") for line in (tmp_path / "run/rounds.csv").read_text(encoding="utf-8").splitlines()]
    whole = [line.split(",") for line in (three / "rounds.csv").read_text(encoding="utf-8").splitlines()]
    assert [row[:2] + row[3:] for row in kept] == [row[:2] + row[3:] for row in whole]


def test_progress_in_python(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fedrbn.run(small(1), tmp_path / "run", progress=True)
    shown = capsys.readouterr()
    said = " ".join(shown.err.split())
    assert "fedrob: 2 clients (1 AT, 1 ST)" in said
    assert "1 round to go" in said
    assert "round 1/1" in shown.err
    assert shown.out == ""
