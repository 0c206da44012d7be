"""Figures of experiments: they show the numbers of the table, the paper's apart from ours, and say what is missing."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from typer.testing import CliRunner

from fedrbn.cli import app
from fedrbn.errors import FigureError
from fedrbn.federated.options import resolved
from fedrbn.figures import bars, catalogue, curves, lines, style
from fedrbn.figures.sources import Request, results
from fedrbn.reproduce import declarations, experiment_cells, reading, table, table_text
from fedrbn.reproduce.scales import SCALES
from fedrbn.reproduce.table import Number
from fedrbn.runs.directory import RunDirectory

SMOKE = SCALES["smoke"]
WithNumbers = Callable[..., Request]


@pytest.fixture
def with_numbers(tmp_path: Path) -> WithNumbers:
    """Writes the table of an experiment as `reproduce` would, with numbers made up by a rule."""

    def write(name: str, rule: Callable[[Number], dict[int, float]], seeds: tuple[int, ...] = (1,)) -> Request:
        declaration = declarations.read(name)
        cells = experiment_cells.cells(declaration, SMOKE, seeds, data="digits-mini")
        empty = table.fill(declaration, cells, tmp_path / "store", SMOKE, "pixel", seeds)
        filled = replace(empty, numbers=tuple(replace(number, seeds=rule(number)) for number in empty.numbers))
        table_text.write(filled, tmp_path / name)
        return Request(tmp_path / name / "table.json", tmp_path / "store", "smoke", data="digits-mini")

    return write


def texts(figure: Figure) -> str:
    """All that is written in a figure, as its SVG has it."""
    found = [text.get_text() for axes in figure.axes for text in axes.texts]
    found += [axes.get_title() for axes in figure.axes] + [axes.get_xlabel() for axes in figure.axes]
    found += [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    return " ".join([*found, figure.get_supxlabel().replace("\n", " ")])


def fifty(number: Number) -> dict[int, float]:
    return {1: 50.0}


def test_quantities_in_labels() -> None:
    assert [lines.leading_number(text) for text in ("12 %", "5 of 50", "λ=0.5", "200 users")] == [12, 5, 0.5, 200]


def test_highlight_shows_our_line_and_the_papers_beside_it(with_numbers: WithNumbers) -> None:
    def rule(number: Number) -> dict[int, float]:
        share = lines.leading_number(number.column)
        if number.row == "Local AT" and share == 60:
            return {}
        return {1: share / 2 - 1, 2: share / 2 + 1}

    figure = lines.highlight(with_numbers("highlight", rule, (1, 2)))
    ours, paper = figure.axes
    first = ours.lines[0]
    assert list(first.get_xdata()) == pytest.approx([0, 12, 20, 60, 100])
    assert list(first.get_ydata()) == pytest.approx([0, 6, 10, 30, 50])
    # the paper's FedRBN is the third row of its table
    printed = next(line for line in paper.lines if line.get_color() == style.METHODS["FedRBN"].colour)
    assert list(printed.get_ydata()) == pytest.approx([32.1, 55.1, 57.3, 61.6, 65.7])
    assert printed.get_markerfacecolor() == "white"
    assert first.get_markerfacecolor() != "white"
    said = texts(figure)
    for text in ("ours, scale smoke", "paper, as printed", "FATAvg", "Local AT", "AT users in %"):
        assert text in said
    assert "Not run and left out: Local AT 60 %." in said
    assert "seeds 1, 2" in said
    assert "Run on digits-mini in place of the paper's digits (plain for mnist" in said


def test_a_line_leaves_out_what_was_not_run(with_numbers: WithNumbers) -> None:
    request = with_numbers("participants", lambda n: {} if n.column == "10 of 50" else {1: 40.0})
    figure = lines.participants(request)
    assert list(figure.axes[0].lines[0].get_xdata()) == pytest.approx([5, 25, 50])
    assert "No validation curves: no runs in" in texts(figure)
    assert "Not run and left out: FedRBN 10 of 50, FATBN 10 of 50, FATAvg 10 of 50." in texts(figure)


def test_error_bars_are_standard_deviations(with_numbers: WithNumbers) -> None:
    request = with_numbers("trade-off", lambda n: {1: 40.0, 2: 44.0}, (1, 2))
    figure = lines.trade_off(request)
    (upper, _), *_ = figure.axes[0].collections[0].get_segments()
    assert upper[1] == pytest.approx(42 - 8**0.5)  # of 40 and 44 around 42: √((2² + 2²) / 1) = √8
    assert "paper, as printed" in texts(figure)


def test_curves_of_the_trade_off_are_rows_that_differ_in_lambda(with_numbers: WithNumbers) -> None:
    assert lines.curve_of("FedRBN λ=0.5, BN_a") == lines.curve_of("FedRBN λ=1, BN_a") == "FedRBN, BN_a"

    def rule(number: Number) -> dict[int, float]:
        weights = {"λ=0,": 0.0, "λ=0.5,": 0.5, "λ=1,": 1.0}
        weight = next((w for text, w in weights.items() if text in number.row), 2.0)
        return {1: 60 + weight if number.metric == "SA" else 30 + weight}

    figure = lines.plus(with_numbers("plus", rule))
    first = figure.axes[0].lines[0]
    assert list(first.get_xdata()) == pytest.approx([60, 60.5, 61])
    assert list(first.get_ydata()) == pytest.approx([30, 30.5, 31])
    assert [text.get_text() for text in figure.axes[0].texts[:3]] == ["0", "0.5", "1"]
    assert "FedRBN+, BN_a" in texts(figure)
    assert "Up and to the right is better." in texts(figure)


def test_bars_stand_where_their_column_is(with_numbers: WithNumbers) -> None:
    values = {"FedRBN": 60.0, "FATBN": 40.0, "FATAvg": 30.0, "FATProx": 20.0}
    figure = bars.single_domain(with_numbers("single-domain", lambda n: {1: values[n.row]}))
    heights = [[bar.get_height() for bar in group] for group in figure.axes[0].containers]
    assert heights == [[60.0] * 5, [40.0] * 5, [30.0] * 5, [20.0] * 5]
    first = [group[0].get_x() + group[0].get_width() / 2 for group in figure.axes[0].containers]
    assert np.mean(first) == pytest.approx(0)  # four bars around their column
    assert [tick.get_text() for tick in figure.axes[0].get_xticklabels()][:2] == ["MNIST", "SVHN"]
    assert figure.axes[0].get_ylim()[0] == 0


def test_columns_that_cannot_run_are_left_out(with_numbers: WithNumbers) -> None:
    request = with_numbers("ratio", lambda n: {1: 50.0} if n.column in ("1/10", "10/10") else {})
    figure = bars.ratio(request)
    assert [tick.get_text() for tick in figure.axes[0].get_xticklabels()] == ["1/10", "10/10"]
    assert "and 28 more" in texts(figure)  # eight columns of four methods were not run, and four of them are named


def test_domains_are_read_from_the_metrics(with_numbers: WithNumbers) -> None:
    figure = bars.domain_wise(with_numbers("domain-wise", lambda n: {1: 70.0 if n.metric == "USPS RA" else 10.0}))
    assert [bar.get_height() for bar in figure.axes[0].containers[0]] == [10.0, 10.0, 70.0, 10.0, 10.0]
    assert [bar.get_height() for bar in figure.axes[1].containers[0]] == [10.0] * 5


def test_users_grow_their_marks(with_numbers: WithNumbers) -> None:
    figure = lines.users(with_numbers("users", lambda n: {1: lines.leading_number(n.column) / 10}))
    sizes = figure.axes[0].collections[0].get_sizes()
    assert list(sizes) == [35, 60, 160, 210]  # users + 10


def test_data_size_has_a_row_for_each_part(with_numbers: WithNumbers) -> None:
    figure = lines.data_size(with_numbers("data-size", fifty))
    labels = [axes.get_xlabel() for axes in figure.axes]
    assert labels == ["share of the training images in %"] * 2 + ["share held out for validation in %"] * 2


def test_curves_are_means_over_seeds(with_numbers: WithNumbers, tmp_path: Path) -> None:
    request = with_numbers("convergence", lambda n: {1: 50.0, 2: 50.0}, (1, 2))
    cells = experiment_cells.cells(declarations.read("convergence"), SMOKE, [1, 2], data="digits-mini", only="/FedRBN/")
    for run, scores in zip(cells[0].runs, ([0.2, 0.4], [0.4, 0.8]), strict=True):
        path = reading.directory(run, tmp_path / "store")
        RunDirectory.create(path, resolved(run))
        for number, score in enumerate(scores, start=1):
            RunDirectory.open(path).append(
                "rounds.jsonl", {"round": number, "clients": {}, "validation": {"score": score}}
            )
    (found,) = curves.store_curves(request, results(request, "convergence")).values()
    assert found.rounds == (1, 2)
    assert found.mean == pytest.approx((30, 60))
    assert found.low == pytest.approx((20, 40))
    assert found.high == pytest.approx((40, 80))
    figure = curves.convergence(request)
    assert list(figure.axes[0].lines[0].get_ydata()) == pytest.approx([30, 60])
    assert "FedRBN" in texts(figure)


def test_only_the_seeds_that_are_asked_for(with_numbers: WithNumbers) -> None:
    request = with_numbers("highlight", lambda n: {1: 10.0, 2: 30.0}, (1, 2))
    assert results(request, "highlight").numbers[0].mean == 20.0
    assert results(replace(request, seeds=(2,)), "highlight").numbers[0].mean == 30.0
    with pytest.raises(FigureError, match="--seeds 7"):
        results(replace(request, seeds=(7,)), "highlight")


def test_missing_results_name_the_command(tmp_path: Path) -> None:
    request = Request(tmp_path / "out/highlight-cpu/table.json", Path("runs"), threat="authors-release")
    with pytest.raises(FigureError) as error:
        lines.highlight(request)
    command = "fedrbn reproduce highlight --scale cpu --threat authors-release --out"
    assert f"Make them: {command} {tmp_path / 'out'}" in str(error.value)


def test_damaged_results_name_the_command(tmp_path: Path) -> None:
    for content in ("{", json.dumps({"name": "highlight"}), "[]"):
        (tmp_path / "table.json").write_text(content)
        with pytest.raises(FigureError, match="Write it again: fedrbn reproduce highlight"):
            results(Request(tmp_path / "table.json"), "highlight")


@pytest.mark.parametrize("name", ["highlight", "single-domain", "ratio", "trade-off", "participants", "users"])
def test_the_command_writes_svg_and_png(name: str, with_numbers: WithNumbers, tmp_path: Path) -> None:
    request = with_numbers(name, fifty)
    (tmp_path / f"results/{name}-smoke-digits-mini").mkdir(parents=True)
    request.table.rename(tmp_path / f"results/{name}-smoke-digits-mini/table.json")
    given = ["--results", str(tmp_path / "results"), "--scale", "smoke", "--data", "digits-mini"]
    done = CliRunner().invoke(
        app, ["figure", name, *given, "--store", str(tmp_path / "store"), "-o", str(tmp_path / "f.svg")]
    )
    assert done.exit_code == 0, done.output
    assert done.stdout.split() == ["wrote", str(tmp_path / "f.svg"), "wrote", str(tmp_path / "f.png")]
    content = (tmp_path / "f.svg").read_text()
    assert "scale smoke" in content
    assert f"<dc:title>{catalogue.FIGURES[name].title}</dc:title>" in content
    assert (tmp_path / "f.png").read_bytes().startswith(b"\x89PNG")


def test_every_figure_is_listed() -> None:
    done = CliRunner().invoke(app, ["figure", "--list"])
    assert done.exit_code == 0
    assert len(catalogue.FIGURES) == 21
    for name, entry in catalogue.FIGURES.items():
        assert f" {name} " in done.stdout
        assert entry.experiment in declarations.names()
        assert "fig:" not in entry.place, "a label of the paper's source, which readers do not have"
        if entry.needs.startswith("reproduce "):
            assert entry.place == declarations.read(entry.experiment).place


def test_unknown_figures_are_refused_with_the_nearest() -> None:
    done = CliRunner().invoke(app, ["figure", "highligt"])
    assert "Did you mean 'highlight'?" in str(done.exception)
    assert "got no figure" in str(CliRunner().invoke(app, ["figure"]).exception)


def test_a_run_that_stopped_is_not_said_not_to_have_been_run(with_numbers: WithNumbers) -> None:
    request = with_numbers("choices", lambda number: {} if number.row == "off" else {1: 50.0})
    content = json.loads(request.table.read_text(encoding="utf-8"))
    for number in content["numbers"]:
        number["stopped"] = {"1": 12} if (number["row"], number["column"]) == ("off", "SVHN") else {}
    request.table.write_text(json.dumps(content), encoding="utf-8")
    said = results(request, "choices").part("Clipping of the calibration gradient").provenance()
    assert "Not run and left out: off MNIST, off USPS" in said
    assert said.endswith("Stopped before their last round and left out: off SVHN.")
