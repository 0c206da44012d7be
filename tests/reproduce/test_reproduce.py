"""The experiments of the paper: their declarations, the runs they need at every scale, their tables."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from fedrbn.attacks import attack_named, described
from fedrbn.cli import app
from fedrbn.config import ConfigError, Experiment, FirstDomains
from fedrbn.cost.count import without_images
from fedrbn.data import AVAILABLE
from fedrbn.data.federation import at_users
from fedrbn.evaluation.records import EvaluationRecord
from fedrbn.federated.client import batches, steps_per_epoch
from fedrbn.federated.options import resolved
from fedrbn.federated.server import Plan
from fedrbn.federated.training.meta import Meta
from fedrbn.reproduce import declarations, domain_divergence, experiment_cells, reading, running, table, table_text
from fedrbn.reproduce.declarations import Declaration, Part
from fedrbn.reproduce.experiment_cells import Cell
from fedrbn.reproduce.scales import SCALES, scaled
from fedrbn.runs.directory import RunDirectory

NAMES = declarations.names()
OURS = (
    "bn-clusters", "bn-shift", "budgets", "choices", "domains", "fedrob-choice", "plus", "plus-choice", "plus-parts",
    "rounds", "strong", "transfer",
)  # fmt: skip
"""Those that are not the paper's."""
SMOKE = SCALES["smoke"]
PGD7 = {"benchmark": "20 %", "highlight": "12 %"}
"""Where the paper prints RA under 7 steps, by experiment: its column with 10, or with 6, of 50 users AT."""


@cache
def cells(name: str, scale: str = "paper") -> list[Cell]:
    """The cells with the paper's own data, whatever is prepared here."""
    return experiment_cells.cells(declarations.read(name), SCALES[scale], data="domainnet")


def cell(name: str, part: str, row: str, column: str) -> Cell:
    (found,) = [c for c in cells(name) if (c.part, c.row, c.column) == (part, row, column)]
    return found


def at_and_all(experiment: Experiment) -> tuple[int, int]:
    """How many users train adversarially, and how many there are."""
    own = experiment.federation
    users = {d: [f"{d}-{i}" for i in range(own.users_per_domain)] for d in AVAILABLE[experiment.data.name].domains}
    return len(at_users(users, own.at)), sum(map(len, users.values()))


def test_everything_in_the_paper_is_there() -> None:
    assert [name for name in NAMES if name not in OURS] == [
        "ablation",
        "attacks",
        "batch-epochs",
        "benchmark",
        "bn-divergence",
        "convergence",
        "data-size",
        "dirichlet",
        "domain-wise",
        "fine-tuning",
        "free-at",
        "highlight",
        "office-caltech10",
        "participants",
        "ratio",
        "ratio-domainnet",
        "resnet18",
        "single-domain",
        "single-domain-domainnet",
        "trade-off",
        "users",
    ]


def benchmark_plans(scale: str) -> dict[str, Plan]:
    """What the server does for each method of the benchmark on Digits, from declared sizes: no image is opened."""
    return {
        c.row: without_images(c.runs[0]).plan
        for c in cells("benchmark", scale)
        if (c.part, c.column) == ("Digits", "20 %")
    }


def progress(plan_: Plan) -> set[float]:
    """Learning rate × steps of the weights over all rounds, of every user. FATMeta takes one step per two batches."""
    per_step = 2 if isinstance(plan_.method.training, Meta) else 1
    steps = {math.ceil(steps_per_epoch(m.samples, plan_.train.batch_size) / per_step) for m in plan_.members}
    return {
        round(sum(plan_.schedule.lr(number) for number in range(plan_.schedule.rounds)) * count, 9) for count in steps
    }


@pytest.mark.parametrize(
    ("scale", "images", "steps", "rounds", "lr"),
    [("paper", 109, 4, 300, 0.01), ("full", 109, 4, 60, 0.05), ("cpu", 64, 2, 120, 0.05)],
)
def test_learning_rate_times_steps_is_the_papers_at_every_scale_that_can_speak_of_it(
    scale: str, images: int, steps: int, rounds: int, lr: float
) -> None:
    """109 images are 32 + 32 + 32 + 13, four steps; 300 rounds at 0.01 are 300 · 4 · 0.01 = 12.

    full: 60 · 4 · 0.05 = 12. cpu: 64 images are two whole batches, 120 · 2 · 0.05 = 12. FATMeta adapts on one batch and
    trains on the next, so it takes half as many steps, at a tenth of the rate: 300 · 2 · 0.001 = 60 · 2 · 0.005 =
    120 · 1 · 0.005 = 0.6.
    """
    plans = benchmark_plans(scale)
    assert len(plans) == 9
    for row, found in plans.items():
        assert {member.samples for member in found.members} == {images}
        assert {steps_per_epoch(member.samples, found.train.batch_size) for member in found.members} == {steps}
        assert found.schedule.rounds == rounds
        assert found.schedule.lr(0) == pytest.approx(lr / 10 if row == "FATMeta" else lr)
        assert progress(found) == {0.6 if row == "FATMeta" else 12.0}, row
    meta = plans["FATMeta"].method.training
    assert isinstance(meta, Meta)
    assert meta.inner == 0.02, "the step that adapts is taken once, however many rounds there are"


@pytest.mark.parametrize("scale", ["paper", "full", "cpu"])
def test_runs_of_batch_epochs_differ_in_their_batches(scale: str) -> None:
    """At cpu a user has 64 images: B = 50 is 50 + 14, B = 100 is all of them at once, B = 10 is 6 · 10 + 4, E times."""
    found = {c.row: without_images(c.runs[0]).plan for c in cells("batch-epochs", scale) if c.column == "FedRBN"}
    sizes = {}
    for row, plan_ in found.items():
        (count,) = {member.samples for member in plan_.members}
        steps = plan_.train.local_epochs * steps_per_epoch(count, plan_.train.batch_size)
        drawn = batches(count, plan_.train.batch_size, steps, torch.Generator().manual_seed(0))
        sizes[row] = [len(batch) for batch in drawn]
    assert len({tuple(batch) for batch in sizes.values()}) == 5
    if scale == "cpu":
        assert sizes["B=50, E=1"] == [50, 14]
        assert sizes["B=100, E=1"] == [64]
        assert sizes["B=10, E=4"] == 4 * [10, 10, 10, 10, 10, 10, 4]
    assert len(keys(c for c in cells("batch-epochs", scale))) == 10


def test_what_is_said_of_clipping_is_kept_and_warm_up_shrinks_with_the_rounds() -> None:
    by_row = {c.row: c.runs[0].method for c in cells("choices", "cpu")}
    assert by_row["none"].clip == by_row["off"].clip == "off", "nothing is said: at no scale is digits clipped"
    assert by_row["norm 10"].clip == 10.0
    assert (by_row["a tenth"].warmup, by_row["a third"].warmup) == (12, 40)


@pytest.mark.parametrize("scale", ["cpu", "full"])
def test_only_photographs_are_clipped(scale: str) -> None:
    found = {c.data: c.runs[0].method.clip for c in cells("benchmark", scale) if "FedRBN" in c.row}
    assert found == {"digits": "off", "domainnet": 10.0}


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", NAMES)
def test_every_cell_is_a_valid_run_at_every_scale(name: str, scale: str) -> None:
    for found in cells(name, scale):
        (run,) = found.runs
        at, users = at_and_all(run)
        assert 0 <= at <= users
        assert run.attack.threat == "pixel"
        if run.data.name == "digits":  # as many images as every user needs, for the smallest domain
            images = run.federation.fraction * min(AVAILABLE["digits"].train) * (1 - run.federation.validation)
            assert images / run.federation.users_per_domain >= run.federation.min_samples


@pytest.mark.parametrize(
    ("name", "part", "row", "column", "paper"),
    [
        ("benchmark", "Digits", "FedRBN λ=0.5", "20 %", (55.8, 87.3, 2.9)),
        ("benchmark", "Digits", "FATBN", "MNIST", (36.5, 86.4, 2.2)),
        ("benchmark", "Digits", "FedRob", "20 %", (20.6, 59.3, 1032)),
        ("benchmark", "DomainNet", "FATMeta", "Real", (0.1, 38.1, 34.6)),
        ("ablation", "Digits", "λ=0.5, BN_c", "20 %", (50.0, 87.0)),
        ("ablation", "DomainNet", "λ=0, BN_a uniform", "20 %", (19.8, 60.5)),
        ("attacks", "Digits", "FATAvg", "", (31.5, 43.4, 30.0, 41.5, 32.9, 63.3, 84.2)),
        ("free-at", "Digits", "FATBN, 100 % Free AT", "", (46.3, 57.4, 276)),
        ("free-at", "Digits", "FATBN, 100 % Free AT, m = 8", "", (None, None, None)),
        ("batch-epochs", "Digits", "B=10, E=8", "FedRBN", (53.4, 68.4)),
        ("dirichlet", "Digits", "FATProx", "", (39.5, 83.4)),
        ("fine-tuning", "Digits", "FedAvg+FT, 100 iterations, 4 frozen layers", "", (31.5, 72.9)),
        ("highlight", "Digits", "FedRBN", "12 %", (55.1, 84.6)),
        ("office-caltech10", "Office-Caltech10", "FedRBN", "Amazon", (9.2, 62.9)),
        ("resnet18", "DomainNet", "FATAvg", "Real", (18.8, 49.0)),
        ("ratio", "Digits", "FedRBN", "1/10", (None, None)),
    ],
)
def test_the_papers_numbers(name: str, part: str, row: str, column: str, paper: tuple[float | None, ...]) -> None:
    assert cell(name, part, row, column).paper == paper


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize(
    ("name", "column", "users"),
    [
        ("benchmark", "20 %", {(10, 50), (6, 30)}),
        ("benchmark", "All", {(50, 50), (30, 30)}),
        ("benchmark", "MNIST", {(10, 50)}),
        ("benchmark", "Real", {(5, 30)}),
        ("ablation", "20 %", {(10, 50), (6, 30)}),
        ("single-domain", "SVHN", {(1, 5)}),
        ("ratio", "1/10", {(5, 50)}),
        ("ratio", "10/10", {(50, 50)}),
        ("attacks", "", {(6, 50)}),
        ("batch-epochs", "FedRBN", {(6, 50)}),
        ("dirichlet", "", {(6, 50)}),
        ("fine-tuning", "", {(6, 50)}),
        ("free-at", "", {(6, 50), (50, 50)}),
        ("highlight", "0 %", {(0, 50)}),
        ("highlight", "12 %", {(6, 50)}),
        ("highlight", "60 %", {(30, 50)}),
        ("users", "25 users", {(3, 25)}),
        ("users", "200 users", {(24, 200)}),
        ("office-caltech10", "Amazon", {(2, 8)}),
        ("ratio-domainnet", "2/5", {(12, 30)}),
    ],
)
def test_who_trains_adversarially_is_the_same_at_every_scale(
    name: str, column: str, users: set[tuple[int, int]], scale: str
) -> None:
    assert {at_and_all(c.runs[0]) for c in cells(name, scale) if c.column == column} == users


def test_settings_of_the_paper_that_are_easily_lost() -> None:
    (real,) = cell("benchmark", "DomainNet", "FedRBN λ=0.5", "Real").runs
    assert (real.model.name, real.federation.validation, real.method.clip) == ("alexnet", 0.6, 10.0)
    assert AVAILABLE["domainnet"].domains[0] == "real"
    (single,) = cell("single-domain", "Digits", "FATBN", "USPS").runs
    assert (single.federation.users_per_domain, single.federation.fraction) == (1, 0.1)
    (free,) = cell("free-at", "Digits", "FedRBN, 20 % 3/5 AT domains", "").runs
    assert (free.train.rounds, free.federation.at) == (150, FirstDomains(ratio=0.2, domains=3))
    replays = {c.row: c.runs[0].method.replays for c in cells("free-at") if "Free AT" in c.row}
    assert list(replays.values()) == [4, 4, 8, 8], replays
    (many,) = cell("users", "Digits", "FATAvg", "200 users").runs
    assert many.federation.participants == 0.5
    assert many.federation.partition.sizes != "uniform"
    (resnet,) = cell("resnet18", "DomainNet", "FedRBN", "All").runs
    assert (resnet.model.name, resnet.train.schedule, resnet.train.lr) == ("resnet18", "cosine", 0.05)
    assert resnet.train.rounds == 600


def keys(found: Iterable[Cell]) -> set[str]:
    return {run.key() for c in found for run in c.runs}


@pytest.mark.parametrize(
    ("name", "of"),
    [
        ("convergence", "benchmark"),
        ("domain-wise", "benchmark"),
        ("bn-divergence", "benchmark"),
        ("bn-shift", "benchmark"),
        ("bn-clusters", "benchmark"),
        ("attacks", "highlight"),
    ],
)
def test_views_need_no_run_of_their_own(name: str, of: str) -> None:
    assert keys(cells(name)) <= keys(cells(of))


def test_the_attacks_table_cannot_be_of_the_benchmarks_runs() -> None:
    """What it prints for 100 steps is above what the benchmark prints for 7, and below what `highlight` prints."""
    for row in ("FATBN", "FATAvg"):
        hundred = cell("attacks", "Digits", row, "").paper[1]
        benchmark, highlight = (cell(name, "Digits", row, at).paper[0] for name, at in PGD7.items())
        assert hundred is not None
        assert benchmark is not None
        assert highlight is not None
        assert benchmark < hundred < highlight
    assert {c.runs[0].federation.at for c in cells("attacks")} == {FirstDomains(ratio=0.2, domains=3)}


def test_runs_that_cannot_differ_are_one_run() -> None:
    # All users are AT users: λ and weighting do not matter, so three rows and six rows share one run.
    for name in ("benchmark", "ablation"):
        shared = [c for c in cells(name) if c.part == "Digits" and c.column == "All" and "λ" in c.row]
        assert len(keys(shared)) == 1
    # The ablation adds uniform weights only: two λ × (20 %, one domain) × two data sets.
    assert len(keys(cells("ablation")) - keys(cells("benchmark"))) == 8
    highlight = [c for c in cells("highlight") if c.column in ("20 %", "100 %") and c.row in ("FATBN", "FedRBN")]
    assert keys(highlight) <= keys(cells("benchmark"))


def test_scaling_by_hand() -> None:
    (whole,) = cell("batch-epochs", "Digits", "B=10, E=8", "FedRBN").runs
    assert resolved(whole).method.clip == "off"
    whole = whole.model_copy(update={"method": whole.method.model_copy(update={"clip": None})})  # as it is declared
    small = scaled(whole, SCALES["cpu"])
    # 300 rounds · 0.4; ten validations in 120 rounds; 0.01 · 5; 0.3 · 0.586 of the images
    assert (small.train.rounds, small.train.validate_every, small.train.lr) == (120, 12, 0.05)
    assert small.method.clip is None, "left to the data set"
    assert small.federation.fraction == pytest.approx(0.1758)
    assert (small.train.batch_size, small.train.local_epochs) == (10, 8)
    assert (small.model.width, small.run.precision) == (0.5, "auto")
    full = scaled(whole, SCALES["full"])
    # 300 rounds / 5 at 0.01 · 5, ten validations; network and images are the paper's
    assert (full.train.rounds, full.train.validate_every, full.train.lr) == (60, 6, 0.05)
    assert (full.model, full.federation.fraction, full.federation.test_samples) == (whole.model, 0.3, 100)
    tiny = scaled(whole, SMOKE)
    # 0.3 / 30 is 73 images for ten users of whom each needs 8 / (1 − 0.5) = 16: 160 / 7291 = 0.02195, rounded up
    assert tiny.federation.fraction == 0.022
    assert scaled(whole, SCALES["paper"]) == whole


def test_the_threat_model_is_another_run() -> None:
    declaration = declarations.read("dirichlet")
    pixel, release = (
        experiment_cells.cells(declaration, SMOKE, threat=threat) for threat in ("pixel", "authors-release")
    )
    assert {c.runs[0].attack.threat for c in release} == {"authors-release"}
    assert not keys(pixel) & keys(release)
    assert experiment_cells.folder_name("dirichlet", "cpu", "authors-release", None) == "dirichlet-cpu-authors-release"
    assert experiment_cells.folder_name("dirichlet", "cpu", "pixel", "digits-mini") == "dirichlet-cpu-digits-mini"


def test_office_stands_in_for_domainnet_and_lacks_two_domains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDRBN_DATA", raising=False)
    found = experiment_cells.cells(declarations.read("single-domain-domainnet"), SMOKE, only="FATBN")
    assert [c.runs[0].federation.at if c.runs else None for c in found] == [
        ("amazon",),
        ("caltech",),
        ("dslr",),
        ("webcam",),
        None,
        None,
    ]
    assert {(c.declared, c.data) for c in found} == {("domainnet", "office-caltech10")}
    assert {c.runs[0].federation.users_per_domain for c in found if c.runs} == {5}
    with pytest.raises(ConfigError, match="office-caltech10, which is not prepared here"):
        experiment_cells.check_data(found)


def test_missing_digits_are_refused_with_a_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDRBN_DATA", raising=False)
    with pytest.raises(ConfigError, match="--data digits-mini"):
        experiment_cells.check_data(experiment_cells.cells(declarations.read("dirichlet"), SMOKE))
    experiment_cells.check_data(experiment_cells.cells(declarations.read("dirichlet"), SMOKE, data="digits-mini"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"read": ["ra"]}, "one for each of the metrics"),
        (
            {"parts": [{"label": "", "columns": [{"label": ""}], "rows": [{"label": "a", "paper": [[1, 2], []]}]}]},
            "got 2",
        ),
        (
            {"parts": [{"label": "", "columns": [{"label": ""}], "rows": [{"label": "a", "paper": [[1]]}]}]},
            "number for",
        ),
        (
            {
                "parts": [
                    {
                        "label": "",
                        "columns": [{"label": ""}],
                        "rows": [{"label": "a", "paper": [[1, 2]], "paper_std": [[1]]}],
                    }
                ]
            },
            "a deviation for each",
        ),
        (
            {"parts": [{"label": "", "columns": [{"label": ""}], "rows": [{"label": "a"}], "against": "b"}]},
            "against = 'b'",
        ),
    ],
)
def test_declarations_that_do_not_fit_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Declaration.model_validate({"name": "x", "title": "", "place": "", "parts": [], **change})


def test_a_misspelt_experiment_has_a_neighbour() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'benchmark'"):
        declarations.read("benchmrk")


def small_cells(seeds: tuple[int, ...] = (1, 2)) -> list[Cell]:
    """FATBN and FATAvg with one AT user of five, on the embedded digits."""
    found = experiment_cells.cells(declarations.read("single-domain"), SMOKE, seeds, data="digits-mini", only="/MNIST")
    return [c for c in found if c.row in ("FATBN", "FATAvg") and c.column == "MNIST"]


def filled(found: list[Cell], store: Path, seeds: tuple[int, ...] = (1, 2)) -> table.Table:
    return table.fill(declarations.read("single-domain"), found, store, SMOKE, "pixel", seeds)


def test_cells_that_were_not_run_are_empty_and_never_the_papers(tmp_path: Path) -> None:
    found = experiment_cells.cells(declarations.read("dirichlet"), SMOKE, data="digits-mini")
    made = table.fill(declarations.read("dirichlet"), found, tmp_path, SMOKE, "authors-release", [1])
    page = table_text.markdown(made)
    assert "| FedRBN |  | 53.1 |  | 84.4 |" in page
    assert "Threat model: authors-release" in page
    assert "nothing has run" in page
    assert "run on digits-mini in place of digits (plain for mnist" in page
    assert "nominally" in page
    rows = list(csv.DictReader(io.StringIO(table_text.as_csv(made))))
    assert [(row["mean"], row["std"], row["seeds"], row["paper"]) for row in rows[:2]] == [
        ("", "", "", "53.1"),
        ("", "", "", "84.4"),
    ]
    assert all(number["mean"] is None for number in table_text.values(made)["numbers"])


def test_mean_and_deviation_over_seeds_by_hand() -> None:
    number = table.Number("", "", "", "RA", "digits", {1: 50.0, 2: 52.0, 3: 54.0}, 55.8)
    assert (number.mean, number.std) == (52.0, 2.0)  # deviations −2, 0, 2: √(8 / 2)
    assert table_text.shown_mean(number) == "52.0 ± 2.0"
    assert table_text.shown_mean(number, wanted=4) == "52.0 ± 2.0 (3)", "of four seeds"
    survivor = table.Number("", "", "", "RA", "digits", {1: 50.0}, None, {2: 7, 3: 4})
    assert table_text.shown_mean(survivor, wanted=3) == "50.0 (1; stopped in round 7; stopped in round 4)"
    assert table_text.shown_mean(table.Number("", "", "", "RA", "digits", {1: 0.58}, None)) == "0.6"
    assert table_text.shown_mean(table.Number("", "", "", "T", "digits", {1: 0.00612}, None)) == "0.00612"
    assert table_text.shown_mean(table.Number("", "", "", "T", "digits", {1: 0.4, 2: 0.4}, None)) == "0.4", "no ± 0"
    assert table_text.shown_mean(table.Number("", "", "", "RA", "digits", {1: 0.4, 2: 0.4}, None)) == "0.4 ± 0.0"
    assert [table_text.printed_number(value) for value in (62.0, 127.9, 1032.0, None)] == ["62.0", "127.9", "1032", ""]


def test_deviations_that_the_paper_prints_stand_with_its_numbers(tmp_path: Path) -> None:
    assert cell("office-caltech10", "Office-Caltech10", "FATProx", "Amazon").paper_std == (0.6, 4.7)
    assert cell("office-caltech10", "Office-Caltech10", "FedRBN", "All").paper_std == (2.4, 1.7)
    assert cell("benchmark", "Digits", "FATBN", "All").paper_std == (None, None, None)
    declaration = declarations.read("office-caltech10")
    made = table.fill(declaration, cells("office-caltech10"), tmp_path, SCALES["paper"], "pixel", [1])
    assert "| FATAvg |  | 0.6 ± 0.5 |  | 54.7 ± 3.8 |  | 13.3 ± 2.3 |  | 56.0 ± 2.6 |" in table_text.markdown(made)
    first = next(csv.DictReader(io.StringIO(table_text.as_csv(made))))
    assert (first["paper"], first["paper_std"]) == ("9.2", "3.4")
    assert table_text.values(made)["numbers"][0]["paper_std"] == 3.4


def test_an_experiment_resumes_and_shares_its_store(tmp_path: Path) -> None:
    found = small_cells()
    todo = running.tasks(found)
    assert len(todo) == 4  # two methods, two seeds
    first = list(running.complete(todo[:1], tmp_path, 1, 1))
    assert [outcome.error for outcome in first] == [None]
    partly = filled(found, tmp_path)
    assert [sorted(number.seeds) for number in partly.numbers] == [[1], [1], [], []]
    path = reading.directory(todo[0].experiment, tmp_path)
    written = (path / "last.safetensors").stat().st_mtime_ns
    assert all(outcome.error is None for outcome in running.complete(todo, tmp_path, 1, 1))
    assert (path / "last.safetensors").stat().st_mtime_ns == written, "a finished run was repeated"
    whole = filled(found, tmp_path)
    assert all(sorted(number.seeds) == [1, 2] for number in whole.numbers)
    table_text.write(whole, tmp_path / "out")
    assert json.loads((tmp_path / "out/table.json").read_text())["numbers"][0]["std"] is not None
    assert "±" in (tmp_path / "out/table.md").read_text()
    assert "torch" in (tmp_path / "out/table.csv").read_text()


def test_a_run_that_could_not_go_on_says_in_which_round(tmp_path: Path) -> None:
    found = small_cells((1,))
    run = found[0].runs[0]
    directory = RunDirectory.create(reading.directory(run, tmp_path), run)
    assert filled(found, tmp_path, (1,)).numbers[0].stopped == {}, "merely not that far"
    directory.append("stops.jsonl", {"round": 3, "failures": []})
    made = filled(found, tmp_path, (1,))
    assert [number.stopped for number in made.numbers] == [{1: 3}, {1: 3}, {}, {}]
    page = table_text.markdown(made)
    assert f"| {found[0].row} | stopped in round 3 |" in page
    assert "Stopped: from that round on" in page
    for number in (1, 2, 3):
        directory.append("rounds.jsonl", {"round": number, "clients": {}})
    assert filled(found, tmp_path, (1,)).numbers[0].stopped == {}, "it was continued"


def test_an_evaluation_of_another_branch_or_other_images_is_not_taken_for_the_tables(
    trained: Path, tmp_path: Path
) -> None:
    path = shutil.copytree(trained, tmp_path / "run")
    (first,) = RunDirectory.open(path).records("evaluations.jsonl")
    text, another = "pgd-20:eps=16/255", "what an earlier version called it"
    attack = {**first["attacks"][first["attack"]], "settings": described(attack_named(text))}
    for change in ({"deployment": "clean"}, {"samples_digest": "other"}, {}):
        assert reading.under_attacks(path, [text]) is None
        record = {**first, "attack": another, "attacks": {another: attack}, **change}
        RunDirectory.open(path).append("evaluations.jsonl", record)
    assert reading.under_attacks(path, [text]) == EvaluationRecord.from_json(record)
    assert reading.value(path, f"ra[{text}]", [text]) == 100 * first["mean"]["ra"], "known by its settings"


def test_a_rows_own_option_must_be_one_of_its_method() -> None:
    part = declarations.read("plus").parts[0]
    row = declarations.Row(label="clipped", method={"name": "fedrbn+", "clip": 10.0})
    with pytest.raises(ValueError, match="clip"):
        resolved(experiment_cells.declared_run(part, row, part.columns[0]))


def test_attacks_in_pixels_are_not_shown_as_those_of_the_released_code() -> None:
    with pytest.raises(ConfigError, match=r"further attacks are in pixels.*Leave --threat out"):
        experiment_cells.cells(declarations.read("attacks"), SMOKE, threat="authors-release")


def test_experiments_that_name_objects_are_found_from_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert experiment_cells.cells(declarations.read("plus-parts"), SMOKE)


def test_rows_are_compared_sample_by_sample(tmp_path: Path) -> None:
    """FATAvg against FATBN, two seeds; counted again here from the answers of the four runs."""
    found = small_cells()
    declaration = declarations.read("single-domain")
    assert small_part(declaration).against is None
    assert table.fill(declaration, found, tmp_path, SMOKE, "pixel", [1, 2]).differences == ()
    named = declaration.model_copy(update={"parts": (small_part(declaration).model_copy(update={"against": "FATBN"}),)})
    assert all(outcome.error is None for outcome in running.complete(running.tasks(found), tmp_path, 1, 1))
    made = table.fill(named, found, tmp_path, SMOKE, "pixel", [1, 2])
    robust, clean = made.differences
    assert [(one.row, one.against, one.metric) for one in made.differences] == [
        ("FATAvg", "FATBN", "RA"),
        ("FATAvg", "FATBN", "SA"),
    ]
    answers = {c.row: [RunDirectory.open(reading.directory(run, tmp_path)).answers() for run in c.runs] for c in found}
    ours, theirs = (
        [np.concatenate([columns["sa"].numpy() for columns in clients.values()]) for clients in answers[row]]
        for row in ("FATAvg", "FATBN")
    )
    assert clean.seeds == pytest.approx({i + 1: 100 * (ours[i].mean() - theirs[i].mean()) for i in range(2)})
    both = np.concatenate(ours), np.concatenate(theirs)
    assert (clean.samples, clean.only_row) == (len(both[0]), int((both[0] & ~both[1]).sum()))
    assert clean.only_against == int((both[1] & ~both[0]).sum())
    assert clean.only_row + clean.only_against > 0, "the two methods answer alike, so that this test shows nothing"
    page = table_text.markdown(made)
    assert "Compared with FATBN, in points" in page
    assert f"| FATAvg | {robust.mean:+.1f} ± {robust.std:.1f} (2; p" in page
    assert table_text.values(made)["differences"][1]["mean"] == clean.mean


def small_part(declaration: Declaration) -> Part:
    (part,) = [part for part in declaration.parts if part.label == small_cells()[0].part]
    return part


def test_evaluations_of_other_images_are_not_compared(tmp_path: Path) -> None:
    found = small_cells((1,))
    declaration = declarations.read("single-domain")
    named = declaration.model_copy(update={"parts": (small_part(declaration).model_copy(update={"against": "FATBN"}),)})
    assert all(outcome.error is None for outcome in running.complete(running.tasks(found), tmp_path, 1, 1))
    assert len(table.fill(named, found, tmp_path, SMOKE, "pixel", [1]).differences) == 2
    path = reading.directory(found[0].runs[0], tmp_path) / "evaluations.jsonl"
    record = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**record, "samples_digest": "of other images"}) + "\n", encoding="utf-8")
    assert table.fill(named, found, tmp_path, SMOKE, "pixel", [1]).differences == ()


def test_a_failed_run_leaves_its_cell_empty_and_the_others_go_on(tmp_path: Path) -> None:
    found = small_cells((1,))
    todo = running.tasks(found)
    broken = reading.directory(todo[0].experiment, tmp_path)
    broken.mkdir()
    (broken / "config.toml").write_text("this is not TOML", encoding="utf-8")
    outcomes = list(running.complete(todo, tmp_path, 1, 1))
    assert outcomes[0].error is not None
    assert "not a valid config" in outcomes[0].error
    assert outcomes[1].error is None
    numbers = filled(found, tmp_path, (1,)).numbers
    assert [bool(number.seeds) for number in numbers] == [False, False, True, True]


def test_what_is_read_from_a_run(trained: Path) -> None:
    record = RunDirectory.open(trained).records("evaluations.jsonl")[0]
    rounds = RunDirectory.open(trained).records("rounds.jsonl")
    assert reading.value(trained, "ra@clean") == 100 * record["mean"]["ra@clean"]
    assert reading.value(trained, "sa/pen") == 100 * record["domains"]["pen"]["sa"]
    assert reading.value(trained, "T") == record["cost"]["macs_per_epoch"]["paper"] / 1e12
    # Four rounds, validated after the second and the fourth.
    assert reading.value(trained, "validation 0.25") is None
    assert reading.value(trained, "validation 0.75") == 100 * rounds[1]["validation"]["score"]
    assert reading.value(trained, "validation 1.0") == 100 * rounds[3]["validation"]["score"]
    assert reading.value(trained, "validation 1 sa_st") == 100 * rounds[3]["validation"]["sa_st"]
    assert reading.value(trained, "ra[pgd-100]", ["pgd-100"]) is None
    assert reading.value(trained, "similarity plain pen") is None
    assert reading.value(trained.parent / "nothing", "ra") is None


def test_divergence_of_domains_that_are_the_same_or_far_apart() -> None:
    rng = np.random.default_rng(0)
    near, also_near, far = (rng.normal(shift, 1, (400, 5)).astype(np.float32) for shift in (0, 0, 9))
    assert domain_divergence.domain_divergence(near, far, rng) == 2  # told apart without error
    # The error is one half in expectation; its standard error on 400 images is 0.025, so d is within 4 · 3 · 0.025.
    assert domain_divergence.domain_divergence(near, also_near, rng) < 0.3


def test_the_list_shows_every_experiment() -> None:
    result = CliRunner().invoke(app, ["reproduce", "--list"])
    assert result.exit_code == 0
    assert all(name in result.stdout for name in NAMES)
    assert "Section 5.2, Table 2" in result.stdout


def test_the_list_needs_neither_torch_nor_the_latex_source() -> None:
    """It answers at once: nothing is counted. No label of the source is printed."""
    code = (
        "import sys\nfrom fedrbn.cli import main\nsys.argv = ['fedrbn', 'reproduce', '--list']\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "heavy = {'torch', 'numpy', 'scipy'} & sys.modules.keys()\nsys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "benchmark" in done.stdout
    places = [declarations.read(name).place for name in declarations.names()]
    assert not [place for place in places if re.search(r"tbl:|tab:|fig:|thm:|sec:|commented", place)]


def test_the_list_of_one_experiment_shows_its_runs_and_times() -> None:
    result = CliRunner().invoke(app, ["reproduce", "single-domain", "--list"])
    assert result.exit_code == 0, result.output
    assert all(scale in result.stdout for scale in SCALES)
    assert "assumed" in result.stdout


def test_the_command_writes_its_tables(tmp_path: Path) -> None:
    options = ["--scale", "smoke", "--data", "digits-mini", "--only", "FATBN/MNIST", "--workers", "1"]
    places = ["--out", str(tmp_path / "results"), "--store", str(tmp_path / "runs")]
    result = CliRunner().invoke(app, ["reproduce", "single-domain", *options, *places])
    assert result.exit_code == 0, result.output
    folder = tmp_path / "results/single-domain-smoke-digits-mini"
    assert sorted(path.name for path in folder.iterdir()) == ["table.csv", "table.json", "table.md"]
    page = (folder / "table.md").read_text()
    assert "Scale smoke" in page
    asked = "fedrbn reproduce single-domain --scale smoke --seeds 1 --data digits-mini --only FATBN/MNIST"
    assert f"Made by `{asked}`." in page
    assert json.loads((folder / "table.json").read_text())["command"] == asked
    assert experiment_cells.command(
        "benchmark", "cpu", [1, 2], threat="authors-release", only="a b", store=Path("s")
    ) == ("fedrbn reproduce benchmark --scale cpu --seeds 1,2 --threat authors-release --only 'a b' --store s")


def test_tables_of_what_is_finished_without_running_anything(tmp_path: Path) -> None:
    options = ["--scale", "smoke", "--data", "digits-mini", "--only", "/MNIST", "--no-run"]
    places = ["--out", str(tmp_path / "results"), "--store", str(tmp_path / "runs")]
    found = [c for c in small_cells((1,)) if c.row == "FATBN"]
    assert [outcome.error for outcome in running.complete(running.tasks(found), tmp_path / "runs", 1, 1)] == [None]
    result = CliRunner().invoke(app, ["reproduce", "single-domain", *options, *places])
    assert result.exit_code == 0, result.output
    assert len(list((tmp_path / "runs").iterdir())) == 1, "something was run"
    content = json.loads((tmp_path / "results/single-domain-smoke-digits-mini/table.json").read_text())
    assert {n["row"] for n in content["numbers"] if n["seeds"]} == {"FATBN"}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One store for all experiments, as people use it."""
    return tmp_path_factory.mktemp("store")


def some(found: list[Cell]) -> list[Cell]:
    """The first and last cell of every part and, where rows read different things of one run, all that read it."""
    by_part = {part: [c for c in found if c.part == part and c.runs] for part in dict.fromkeys(c.part for c in found)}
    ends = [c for part in by_part.values() for c in (part[0], part[-1])]
    return [c for c in found if keys([c]) & keys(ends)]


@pytest.mark.slow
@pytest.mark.skipif("FEDRBN_DATA" not in os.environ, reason="needs the real digits: set FEDRBN_DATA")
@pytest.mark.parametrize("name", NAMES)
def test_every_experiment_runs_at_smoke(name: str, store: Path) -> None:
    declaration = declarations.read(name)
    chosen = some(experiment_cells.cells(declaration, SMOKE))
    outcomes = list(running.complete(running.tasks(chosen), store, 2, SMOKE.subset))
    assert [outcome.error for outcome in outcomes if outcome.error] == []
    made = table.fill(declaration, chosen, store, SMOKE, "pixel", [1])
    missing = [(n.row, n.column, n.metric) for n in made.numbers if not n.seeds]
    assert not [place for place in missing if "correlation" not in place[0]]  # undefined if all domains are told apart
