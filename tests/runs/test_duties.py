"""Runs with a duty for each client: the same however they are executed or interrupted."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from federated.test_duties import TINY
from fedrbn.config import Experiment, make
from fedrbn.federated.assemble import assemble
from fedrbn.fleet.replanning import recorded_duties
from fedrbn.runs import train
from fedrbn.runs.directory import RunDirectory
from fedrbn.runs.duties import with_next_duties
from fedrbn.runs.records import rounds
from fedrbn.types import Duty, Role
from runs.test_train import assert_same_run


def experiment(workers: int = 1, **federation: Any) -> Experiment:
    own = {**TINY["federation"], **federation}
    sections = {"federation": own, "train": {"rounds": 4, "lr": 0.05}, "run": {"workers": workers}}
    return make({**TINY, **sections})


def test_a_plan_is_trained_and_told(tmp_path: Path) -> None:
    record = train.run(experiment(), tmp_path / "run")
    told = {client: (own["role"], own.get("duty")) for client, own in record["users"].items()}
    assert told == {
        "plain-0": ("AT", None),
        "plain-1": ("AT", "AT on 50 %"),
        "pen-0": ("ST", "PNC, λ = 1"),
        "pen-1": ("ST", "plain ST"),
    }
    assert "AT on 50 %" in record["cost"]["macs_per_image"]
    members, _, _ = RunDirectory.open(tmp_path / "run").description()
    assert [m.duty for m in members] == [Role.AT.duty, Duty(at_share=0.5), Duty(lam=1.0), Duty(lam=0.0)]


class StoppedError(Exception):
    """Ends a run."""


class Stopping:
    """Ends a run after so many rounds."""

    def __init__(self, after: int) -> None:
        self.after = after

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None

    def round_finished(self, record: Any) -> None:
        if record.round == self.after:
            raise StoppedError


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_processes_and_resumed_runs_have_the_same_numbers(workers: int, tmp_path: Path) -> None:
    whole, parted = tmp_path / "whole", tmp_path / "parted"
    train.run(experiment(), whole)
    with pytest.raises(StoppedError):
        train.run(experiment(workers), parted, watcher=Stopping(2))
    train.resume(parted)
    assert_same_run(whole, parted)


def test_a_resumed_run_goes_on_with_the_recorded_plan(tmp_path: Path) -> None:
    """Recorded times decide. The second round is made to look as if plain-0 had needed a hundred times as long: the
    plan for the third round, made by the resumed run, gives it plain ST."""
    path = tmp_path / "run"
    chosen = experiment(replan=2, duties={**TINY["federation"]["duties"], "deadline": 1e-1})
    with pytest.raises(StoppedError):
        train.run(chosen, path, watcher=Stopping(2))
    lines = [json.loads(line) for line in (path / "rounds.jsonl").read_text().splitlines()]
    assert lines[0]["duties"]["plain-1"] == {"at_share": 0.5, "lam": None}
    lines[1]["clients"]["plain-0"]["seconds"] = 1e3
    for other in ("plain-1", "pen-0", "pen-1"):
        lines[1]["clients"][other]["seconds"] = 1e-6
    (path / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    directory = RunDirectory.open(path)
    next_round = with_next_duties(assemble(chosen), directory).plan.members
    assert [member.duty for member in next_round] == [Duty(lam=0.0), *[Role.AT.duty] * 3]
    train.resume(path)
    later = rounds(RunDirectory.open(path))
    assert [recorded_duties(record)["plain-0"] for record in later] == [Role.AT.duty] * 2 + [Duty(lam=0.0)] * 2
    members, _, _ = RunDirectory.open(path).description()
    assert members[0] == replace(next_round[0])


def test_a_run_without_replan_records_no_duties(tmp_path: Path) -> None:
    with pytest.raises(StoppedError):
        train.run(experiment(), tmp_path / "run", watcher=Stopping(1))
    assert "duties" not in (tmp_path / "run/rounds.jsonl").read_text()
