"""Charts are well-formed SVG whose marks are where their values are, and whose text is escaped."""

from __future__ import annotations

from itertools import pairwise
from xml.etree import ElementTree

import pytest

from fedrbn.report.charts import DotRow, Point, Series, dots, heat, lines, scatter
from fedrbn.report.content import accuracy, amount, points, probability
from fedrbn.report.svg import SHAPES, Scale, element, shape, spread, ticks


def parsed(svg: str) -> ElementTree.Element:
    return ElementTree.fromstring(svg)  # noqa: S314  (our own)


def marks(svg: str) -> list[ElementTree.Element]:
    return [found for found in parsed(svg).iter("g") if found.get("class") == "mark"]


def labels(svg: str) -> list[str | None]:
    return [mark.get("aria-label") for mark in marks(svg)]


def test_an_element_escapes_text_and_attributes_but_not_elements() -> None:
    inner = element("text", "a < b & c", x=1 / 3)
    outer = element("g", inner, aria_label='"><script>')
    assert inner == '<text x="0.33">a &lt; b &amp; c</text>'
    assert outer == f'<g aria-label="&#34;&gt;&lt;script&gt;">{inner}</g>'


def test_a_scale_is_linear() -> None:
    scale = Scale(0, 2, 100, 300)
    assert [scale(value) for value in (0, 1, 2)] == [100, 200, 300]
    assert Scale(5, 5, 100, 300)(5) == 200  # a single value stands in the middle


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]), (1, 30, [10, 20, 30]), (0, 2.3, [0, 0.5, 1, 1.5, 2]), (4, 4, [4])],
)
def test_ticks_are_round_numbers_within_bounds(low: float, high: float, expected: list[float]) -> None:
    assert ticks(low, high) == pytest.approx(expected)


def test_labels_are_moved_apart_in_their_order() -> None:
    assert spread([10, 50], 13) == [10, 50]
    assert spread([20, 20 - 1e-9], 10) == pytest.approx([25, 15])
    moved = sorted(spread([30, 31, 32], 10))
    assert all(after - before > 9.5 for before, after in pairwise(moved))


def test_every_series_has_a_symbol_of_its_own() -> None:
    drawn = [shape(kind, 0, 0) for kind in range(SHAPES)]
    assert len(set(drawn)) == SHAPES
    assert shape(0, 0, 0, hollow=True) != drawn[0]


def test_dots_stand_at_their_shares() -> None:
    svg = dots("By domain", [DotRow("pen", {"SA": 1.0, "RA": 0.0}), DotRow("<b>", {"SA": 0.5})], ["SA", "RA"])
    assert labels(svg) == ["pen: SA 100.0 %", "pen: RA 0.0 %", "<b>: SA 50.0 %"]
    circles = [circle for mark in marks(svg) for circle in mark.iter("circle") if circle.get("class") == "hit"]
    places = [float(circle.get("cx", "")) for circle in circles]
    assert places == [378, 104, 241]  # the axis goes from 104 to 378; its middle is 241


def test_one_mark_of_a_chart_is_a_stop_of_the_tab_key() -> None:
    svg = dots("By domain", [DotRow("pen", {"SA": 1.0, "RA": 0.0})], ["SA", "RA"])
    assert [mark.get("tabindex") for mark in marks(svg)] == ["0", "-1"]
    assert parsed(svg).get("aria-label", "").startswith("By domain.")


def test_lines_leave_out_what_is_not_a_number() -> None:
    series = [Series("loss", [(1, 2.0), (2, float("nan")), (3, float("inf")), (4, 1.0)])]
    svg = lines("Loss", series, "round", shares=False)
    assert labels(svg) == ["loss, round 1: 2", "loss, round 4: 1"]
    assert "nan" not in svg
    assert "inf" not in svg


def test_lines_name_the_chosen_round() -> None:
    svg = lines("Score", [Series("score", [(1, 0.5), (2, 0.75)])], "round", shares=True, chosen=(2, "chosen: round 2"))
    assert "chosen: round 2" in svg
    assert labels(svg)[1] == "score, round 2: 75.0 %"


def test_heat_cells_are_as_opaque_as_their_weight() -> None:
    svg = heat("Weights", ["a", "b"], ["d", "e"], [[0.25, 0.75], [1.0, 0.0]])
    assert labels(svg) == ["a from d: 25.0 %", "a from e: 75.0 %", "b from d: 100.0 %", "b from e: 0.0 %"]
    cells = [cell.get("fill-opacity") for cell in parsed(svg).iter("rect") if cell.get("class") == "cell"]
    assert cells == ["0.25", "0.75", "1", "0"]


def test_a_scatter_of_many_rows_numbers_them() -> None:
    few = scatter("RA over SA", [Point(f"m{i}", 0.1 * i, 0.5) for i in range(SHAPES)], "SA", "RA")
    many = scatter("RA over SA", [Point(f"m{i}", 0.1 * i, 0.5) for i in range(SHAPES + 1)], "SA", "RA")
    assert 'class="number-filled"' not in few
    numbers = [found.text for found in parsed(many).iter("text") if found.get("class") == "number-filled"]
    assert numbers == [str(i) for i in range(1, SHAPES + 2)] * 2  # in the key and on the points
    assert labels(many)[1] == "m1: SA 10.0 %, RA 50.0 %"


def test_points_on_top_of_each_other_are_not_named_wrongly() -> None:
    svg = scatter("RA over SA", [Point("one", 0.5, 0.5), Point("two", 0.5, 0.5), Point("far", 0.9, 0.1)], "SA", "RA")
    named = [found.text for found in parsed(svg).iter("text") if found.get("class") == "label"]
    assert named.count("far") == 2  # in the key and beside its point
    assert named.count("one") == named.count("two") == 1  # in the key only


def test_numbers_for_people() -> None:
    assert amount(2_943_630_704_640, "MAC") == "2.94 TMAC"
    assert amount(999_600, "B") == "1.00 MB"
    assert amount(12, "B") == "12.0 B"
    assert accuracy(None) == "–"
    assert [points(value) for value in (0.0125, -0.0125, 0.0001)] == ["+1.2", "−1.2", "0.0"]
    assert [probability(p) for p in (0.0004, 0.0123)] == ["< 0.001", "0.012"]
