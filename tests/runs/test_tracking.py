"""Several watchers at once, and the event files of TensorBoard read back."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from statistics import fmean

import pytest
from typer.testing import CliRunner

import fedrbn
from fedrbn.cli import app
from fedrbn.config import Experiment
from fedrbn.errors import TrackingError
from fedrbn.evaluation.records import RoundRecord
from fedrbn.federated.assemble import Assembly
from fedrbn.federated.protocol import Result
from fedrbn.runs.directory import RunDirectory
from fedrbn.runs.tracking import TensorBoard, scalars
from fedrbn.runs.watcher import Watchers
from fedrbn.types import Role


class Diary:
    """A watcher that remembers what it was told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def training(self, assembly: Assembly, finished: int) -> None:
        self.told.append(f"training after {finished}")

    def answered(self, result: Result) -> None:
        self.told.append("answer")

    def round_finished(self, record: RoundRecord) -> None:
        self.told.append(f"round {record.round}")

    def evaluating(self, clients: int) -> None:
        self.told.append(f"evaluating {clients}")


def read_back(folder: Path) -> dict[str, dict[int, float]]:
    """Every scalar by its name and step, as TensorBoard reads it."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(folder)).Reload()
    return {tag: {event.step: event.value for event in events.Scalars(tag)} for tag in events.Tags()["scalars"]}


def test_each_watcher_is_told_everything(tiny: Callable[..., Experiment], tmp_path: Path) -> None:
    one, two = Diary(), Diary()
    experiment = tiny(train={"rounds": 1}, federation={"users_per_domain": 1, "at": ["pen"]})
    fedrbn.run(experiment, tmp_path / "run", watcher=Watchers([one, two]))
    assert one.told == two.told
    # five clients train, are validated after the only round, and are evaluated
    expected = ["training after 0", *["answer"] * 10, "round 1", "evaluating 5", *["answer"] * 5]
    assert one.told == expected


def test_scalars_of_a_round() -> None:
    clients = {"a": {"loss": 1.0}, "b": {"loss": 2.0}, "c": {"loss": 4.0}}
    failures = [{"client": "d", "round": 1, "cause": "x"}]
    line = {"round": 1, "lr": 0.1, "seconds": 7.0, "clients": clients, "failures": failures}
    roles = {"a": Role.AT, "b": Role.ST, "c": Role.ST}
    expected = {
        "train/lr": 0.1,
        "train/seconds": 7.0,
        "loss/AT users": 1.0,
        "loss/ST users": 3.0,  # (2 + 4) / 2
        "clients/failed": 1.0,
    }
    assert scalars(RoundRecord.from_json(line), roles) == expected
    validated = RoundRecord.from_json({**line, "validation": {"score": 0.5, "ra_at": None, "sa_st": 0.5}})
    assert scalars(validated, roles) == expected | {"validation/score": 0.5, "validation/SA of ST users": 0.5}


def test_the_event_file_says_what_the_record_says(tiny: Callable[..., Experiment], tmp_path: Path) -> None:
    path = tmp_path / "run"
    experiment = tiny(train={"rounds": 3, "validate_every": 2}, federation={"users_per_domain": 1, "at": ["pen"]})
    with TensorBoard(path / "tensorboard") as watcher:
        fedrbn.run(experiment, path, watcher=watcher)
    logged = read_back(path / "tensorboard")
    records = {record["round"]: record for record in RunDirectory.open(path).records("rounds.jsonl")}
    assert logged["train/lr"] == pytest.approx({number: record["lr"] for number, record in records.items()})
    assert logged["loss/AT users"] == pytest.approx({n: r["clients"]["pen-0"]["loss"] for n, r in records.items()})
    others = {n: fmean(m["loss"] for c, m in r["clients"].items() if c != "pen-0") for n, r in records.items()}
    assert logged["loss/ST users"] == pytest.approx(others)
    # validated after every second round and after the last
    assert logged["validation/score"] == pytest.approx({n: records[n]["validation"]["score"] for n in (2, 3)})


def test_rounds_that_are_trained_again_replace_the_old(tiny: Callable[..., Experiment], tmp_path: Path) -> None:
    class Stop(Exception):  # noqa: N818
        pass

    class Stopper(Diary):
        def round_finished(self, record: RoundRecord) -> None:
            if record.round == 2:
                raise Stop

    path = tmp_path / "run"
    experiment = tiny(train={"rounds": 3}, federation={"users_per_domain": 1, "at": ["pen"]})
    with TensorBoard(path / "tensorboard") as watcher, pytest.raises(Stop):
        fedrbn.run(experiment, path, watcher=Watchers([watcher, Stopper()]))
    (path / "last.safetensors").unlink()  # as after a crash before the checkpoint: it starts again from the beginning
    with TensorBoard(path / "tensorboard") as watcher:
        fedrbn.resume(path, watcher=watcher)
    assert list(read_back(path / "tensorboard")["train/lr"]) == [1, 2, 3]


def test_without_tensorboard_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)  # as if it could not be imported
    with pytest.raises(TrackingError, match=r"pip install 'fedrbn\[track\]'"):
        TensorBoard(tmp_path)


def test_track_as_an_option(tiny_options: list[str], tmp_path: Path) -> None:
    few = ["--set", "federation.users_per_domain=1", "--set", 'federation.at=["pen"]']
    options = [*tiny_options, *few, "--rounds", "1", "--track", "tensorboard", "-q"]
    done = CliRunner().invoke(app, ["run", *options, "--out", str(tmp_path / "one")])
    assert done.exit_code == 0, done.output
    assert set(read_back(tmp_path / "one/tensorboard")["train/lr"]) == {1}
    done = CliRunner().invoke(app, ["compare", *options, "--methods", "fatbn", "--out", str(tmp_path / "store")])
    assert done.exit_code == 0, done.output
    (folder,) = (tmp_path / "store").glob("fatbn-*/tensorboard")
    assert set(read_back(folder)["train/lr"]) == {1}
