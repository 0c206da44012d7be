"""Numbers of an earlier table are kept where the store has none, and never replace new ones."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fedrbn.cli import app
from fedrbn.reproduce import declarations, experiment_cells, table, table_text
from fedrbn.reproduce.by_name import reproduce_experiment
from fedrbn.reproduce.differences import Difference
from fedrbn.reproduce.earlier_table import with_earlier
from fedrbn.reproduce.scales import SCALES
from fedrbn.reproduce.table import Number, Table
from fedrbn.reproduce.table_file import TableFile

SMOKE = SCALES["smoke"]
PLACE = {"part": "Digits", "column": "MNIST", "metric": "RA"}


def one_number(seeds: dict[int, float], **changes: Any) -> Table:
    """A table of a single number, made with version 1, or another, of the package."""
    found = Number(row="FATBN", data="digits", seeds=seeds, paper=50.0, **PLACE)
    declaration = declarations.read("single-domain")
    made = Table(declaration, (found,), {}, SMOKE, "pixel", tuple(seeds) or (1,), {"fedrbn": ["1"]})
    return replace(made, **changes)


def as_file(made: Table) -> TableFile:
    """The table as it is read from its file."""
    return TableFile.model_validate(json.loads(json.dumps(table_text.values(made))))


def difference(seeds: dict[int, float], p: float = 0.5) -> Difference:
    return Difference(row="FATBN", against="FedRBN", seeds=seeds, samples=10, only_row=1, only_against=2, p=p, **PLACE)


def test_seeds_are_joined_and_a_new_value_wins() -> None:
    new = one_number({2: 40.0, 3: 44.0}, versions={"fedrbn": ["2"]})
    joined = with_earlier(new, as_file(one_number({1: 30.0, 2: 99.0})))
    (number,) = joined.numbers
    assert number.seeds == {1: 30.0, 2: 40.0, 3: 44.0}
    assert number.mean == pytest.approx((30 + 40 + 44) / 3)
    assert joined.seeds == (1, 2, 3)
    assert joined.versions == {"fedrbn": ["1", "2"]}


def test_nothing_is_kept_where_the_store_has_everything() -> None:
    """The versions of numbers that are no longer in the table are not in its caption either."""
    new = one_number({1: 40.0}, versions={"fedrbn": ["2"]})
    assert with_earlier(new, as_file(one_number({1: 30.0}))) == new


def test_numbers_of_other_images_are_not_kept() -> None:
    before = one_number({1: 30.0})
    other = replace(before, numbers=(replace(before.numbers[0], data="digits-mini"),))
    assert with_earlier(one_number({}), as_file(other)).numbers[0].seeds == {}


def test_a_stop_is_shown_until_the_seed_has_a_value() -> None:
    before = one_number({})
    stopped = as_file(replace(before, numbers=(replace(before.numbers[0], stopped={1: 7, 2: 8}),)))
    assert with_earlier(one_number({1: 30.0}), stopped).numbers[0].stopped == {2: 8}


def test_the_difference_over_more_seeds_is_shown() -> None:
    def shown(new: dict[int, float], before: dict[int, float]) -> float:
        earlier = as_file(one_number({1: 30.0}, differences=(difference(before, p=0.25),)))
        (found,) = with_earlier(one_number({2: 40.0}, differences=(difference(new),)), earlier).differences
        return found.mean

    assert shown(new={1: 5.0}, before={2: 1.0}) == 5.0
    assert shown(new={1: 5.0}, before={1: 1.0, 2: 3.0}) == 2.0


def test_a_table_grows_over_two_stores(tmp_path: Path) -> None:
    """The first store is lost, as with its machine."""

    def reproduced(only: str, *more: str) -> dict[str, Any]:
        options = ["--scale", "smoke", "--data", "digits-mini", "--only", only, "--workers", "1", *more]
        places = ["--out", str(tmp_path / "results"), "--store", str(tmp_path / "runs")]
        result = CliRunner().invoke(app, ["reproduce", "single-domain", *options, *places])
        assert result.exit_code == 0, result.output
        shutil.rmtree(tmp_path / "runs")
        file = tmp_path / "results/single-domain-smoke-digits-mini/table.json"
        return {f"{n['row']}/{n['metric']}": n["seeds"] for n in json.loads(file.read_text())["numbers"]}

    first = reproduced("FATBN/MNIST")
    both = reproduced("FATAvg/MNIST", "--keep")
    assert {place: seeds for place, seeds in both.items() if "FATBN" in place} == first
    assert both["FATAvg/RA"], "the cell that is run now"
    assert set(both) == {"FATAvg/RA", "FATAvg/SA", "FATBN/RA", "FATBN/SA"}, "no other cell"
    assert set(reproduced("FATAvg/MNIST")) == {"FATAvg/RA", "FATAvg/SA"}, "without --keep"


def test_without_an_earlier_table_keep_writes_the_first_one(tmp_path: Path) -> None:
    """A script can pass --keep every time. The first table is the one that is written without it."""

    def written(place: str, *, keep: bool) -> str:
        chosen: dict[str, Any] = {"scale": "smoke", "only": "FATBN/USPS", "run": False, "keep": keep}
        made = reproduce_experiment("single-domain", **chosen, out=tmp_path / place, store=tmp_path)
        assert {(number.row, number.column) for number in made.table.numbers} == {("FATBN", "USPS")}
        return (made.folder / "table.json").read_text()

    assert written("first", keep=True) == written("plain", keep=False)


def test_an_empty_store_keeps_the_committed_table(tmp_path: Path) -> None:
    declaration = declarations.read("single-domain")
    cells = experiment_cells.cells(declaration, SMOKE, [1], only="FATBN/MNIST")
    empty = table.fill(declaration, cells, tmp_path, SMOKE, "pixel", [1])
    filled = replace(empty, numbers=tuple(replace(n, seeds={1: 12.5}) for n in empty.numbers), versions={"a": ["1"]})
    assert with_earlier(empty, as_file(filled)) == filled
