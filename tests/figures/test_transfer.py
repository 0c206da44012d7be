"""The figure of donors and receivers, from runs at smoke scale."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from fedrbn.errors import FigureError
from fedrbn.figures import catalogue, transfer
from fedrbn.figures.sources import Request
from fedrbn.reproduce import declarations, experiment_cells, reading, running, table, table_text
from fedrbn.reproduce.scales import SCALES

SMOKE = SCALES["smoke"]
DOMAINS = ("plain", "street", "pen", "synthetic", "texture")


@pytest.fixture(scope="module")
def request_(tmp_path_factory: pytest.TempPathFactory) -> Request:
    """All runs of the experiment on the embedded digits."""
    folder = tmp_path_factory.mktemp("transfer")
    declaration = declarations.read("transfer")
    cells = experiment_cells.cells(declaration, SMOKE, data="digits-mini")
    outcomes = list(running.complete(running.tasks(cells), folder / "store", 1, SMOKE.subset))
    assert [outcome.error for outcome in outcomes] == [None] * 10
    table_text.write(table.fill(declaration, cells, folder / "store", SMOKE, "pixel", (1,)), folder / "table")
    return Request(folder / "table" / "table.json", folder / "store", "smoke", data="digits-mini")


@pytest.mark.slow
def test_every_pair_is_read_from_the_runs_of_its_donor(request_: Request) -> None:
    found = {(pair.donor, pair.receiver): pair for pair in transfer.pairs(request_)}
    assert found.keys() == {(donor, receiver) for donor in DOMAINS for receiver in DOMAINS}
    for pair in found.values():
        assert pair.similarity == pytest.approx(1) if pair.donor == pair.receiver else pair.similarity < 1
    (cell,) = experiment_cells.cells(
        declarations.read("transfer"), SMOKE, data="digits-mini", only="FATBN/MNIST-M/AT on SVHN"
    )
    without = reading.value(reading.directory(cell.runs[0], request_.store), "ra/texture")
    pair = found["street", "texture"]
    assert without is not None
    assert pair.robust - pair.gain == pytest.approx(without)


@pytest.mark.slow
def test_it_is_drawn_with_all_numbers_and_the_correlation(request_: Request, tmp_path: Path) -> None:
    svg, png = catalogue.draw(catalogue.find("transfer"), request_, tmp_path / "transfer")
    content = svg.read_text()
    for text in (*DOMAINS, "Pearson", "seed 1", "points of RA above FATBN"):
        assert text in content
    assert png.stat().st_size > 10_000


@pytest.mark.slow
def test_a_run_that_is_missing_is_named_with_its_command(request_: Request, tmp_path: Path) -> None:
    store = tmp_path / "store"
    shutil.copytree(request_.store, store)
    shutil.rmtree(next(path for path in store.iterdir() if path.name.startswith("fatbn-")))
    finished = r"got finished runs of FedRBN with seeds \[1\] and of FATBN with seeds \[\], "
    with pytest.raises(FigureError, match=rf"{finished}.* Create them: fedrbn reproduce transfer"):
        transfer.pairs(replace(request_, store=store))
