"""Sweeps: which runs a comparison needs, and that it never repeats one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedrbn.config import ConfigError, Experiment
from fedrbn.runs.directory import RunDirectory
from fedrbn.runs.sweep import Setting, SweepCell, cells, complete

LAM: Setting = ("method", "lam", [0, 0.5, 1])


def rows(*args: Any) -> list[tuple[str, int]]:
    return [(cell.row, cell.experiment.run.seed) for cell in cells(*args)]


def test_methods_times_seeds() -> None:
    assert rows({}, ["fedrbn", "fatbn"], [], [1, 2]) == [("fedrbn", 1), ("fedrbn", 2), ("fatbn", 1), ("fatbn", 2)]


def test_swept_values_name_their_rows_and_fixed_ones_do_not() -> None:
    found = cells({}, ["fedrbn"], [LAM, ("train", "rounds", [3])], [1])
    assert [cell.row for cell in found] == ["fedrbn lam=0", "fedrbn lam=0.5", "fedrbn lam=1"]
    assert [cell.experiment.method.lam for cell in found] == [0, 0.5, 1]
    assert {cell.experiment.train.rounds for cell in found} == {3}


def test_an_option_that_a_method_does_not_have_is_left_out_and_its_runs_collapse() -> None:
    found = cells({}, ["fedrbn", "fatbn"], [LAM], [1])
    assert [cell.row for cell in found] == ["fedrbn lam=0", "fedrbn lam=0.5", "fedrbn lam=1", "fatbn"]
    assert found[-1].experiment.method.lam is None


def test_settings_outside_of_the_method_hold_for_all() -> None:
    found = cells({}, ["fedrbn", "fatbn"], [("attack", "eps", ["4/255", "8/255"])], [1])
    assert [cell.row for cell in found] == [
        "fedrbn eps=4/255",
        "fedrbn eps=8/255",
        "fatbn eps=4/255",
        "fatbn eps=8/255",
    ]


def test_every_combination_once() -> None:
    grid = cells({}, ["fedrbn"], [LAM, ("method", "weighting", ["cosine", "uniform"])], [1])
    assert len(grid) == len({cell.experiment.key() for cell in grid}) == 6
    assert grid[1].row == "fedrbn lam=0 weighting=uniform"
    assert rows({}, ["fedrbn", "fedrbn"], [("method", "lam", [0.5, 0.5])], [1, 1]) == [("fedrbn lam=0.5", 1)]


def test_a_misspelt_option_is_refused_not_left_out() -> None:
    with pytest.raises(ConfigError, match=r"got 'lamm'; .* did you mean 'lam'"):
        cells({}, ["fedrbn"], [("method", "lamm", [0.5])], [1])


@pytest.mark.parametrize(("section", "key", "option"), [("run", "seed", "--seeds"), ("method", "name", "--methods")])
def test_what_compare_has_options_for_is_not_swept_by_settings(section: str, key: str, option: str) -> None:
    with pytest.raises(ConfigError, match=option):
        cells({}, ["fedrbn"], [(section, key, [1, 2])], [1])


def test_cells_start_from_the_settings_of_the_file() -> None:
    (cell,) = cells({"train": {"rounds": 9}, "run": {"seed": 5}}, ["fatavg"], [], [3])
    assert (cell.experiment.train.rounds, cell.experiment.run.seed, cell.experiment.method.name) == (9, 3, "fatavg")


def test_a_finished_run_is_used_again(tmp_path: Path, tiny: Callable[..., Experiment]) -> None:
    cell = SweepCell("fatbn", tiny(method={"name": "fatbn"}, train={"rounds": 1}))
    first = complete(cell, tmp_path)
    (path,) = tmp_path.iterdir()
    assert path.name == f"fatbn-seed1-{cell.experiment.key()}"
    written = (path / "last.safetensors").stat().st_mtime_ns
    assert complete(cell, tmp_path) == json.loads(json.dumps(first))
    assert (path / "last.safetensors").stat().st_mtime_ns == written
    assert len(RunDirectory.open(path).records("evaluations.jsonl")) == 1
