"""Charts are well-formed SVG whose marks are where their values are, and whose text is escaped."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from fedrbn.report.charts import DISTINCT, DotRow, ScatterPoint, Series, dots, heat, lines, scatter
from fedrbn.report.content import accuracy, amount, points, probability


def parsed(svg: str) -> ElementTree.Element:
    return ElementTree.fromstring(svg)  # noqa: S314  (our own)


def marks(svg: str) -> list[ElementTree.Element]:
    return [found for found in parsed(svg).iter() if "mark" in found.get("class", "").split()]


def labels(svg: str) -> list[str | None]:
    return [mark.get("aria-label") for mark in marks(svg)]


def test_text_and_labels_are_escaped() -> None:
    svg = scatter("RA < SA", [ScatterPoint('"><script>', 0.5, 0.5)], "SA", "RA")
    assert "<script" not in svg
    assert labels(svg) == ['"><script>: SA 50.0 %, RA 50.0 %']


def test_a_chart_takes_its_colours_from_the_page_and_refers_to_nothing() -> None:
    """Styles, ids and references would be refused by the page's policy, or meet those of another chart."""
    svg = dots("By domain", [DotRow("pen", {"SA": 1.0, "RA": 0.0})], ["SA", "RA"])
    for refused in (" style=", " id=", "href", "clip-path", "#"):
        assert refused not in svg
    fills = {found.get("fill", "") for found in parsed(svg).iter() if found.get("fill")}
    assert {"var(--c0)", "var(--c1)", "var(--ink)", "var(--muted)"} <= fills
    assert all(fill == "none" or fill.startswith("var(--") for fill in fills)


def test_dots_stand_at_their_shares() -> None:
    svg = dots("By domain", [DotRow("pen", {"SA": 1.0, "RA": 0.0}), DotRow("<b>", {"SA": 0.5})], ["SA", "RA"])
    assert labels(svg) == ["pen: SA 100.0 %", "pen: RA 0.0 %", "<b>: SA 50.0 %"]
    places = [float(mark.get("cx", "")) for mark in marks(svg)]
    ticks = [float(t.get("x", "")) for t in parsed(svg).iter("text") if t.text in ("0 %", "100 %")]
    assert places == pytest.approx([ticks[1], ticks[0], sum(ticks) / 2], abs=0.1)  # rounded to a tenth
    assert len({mark.get("cy") for mark in marks(svg)}) == 3  # two of a row stand one above the other


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


def test_a_single_round_is_numbered_with_whole_numbers() -> None:
    texts = re.findall(r">([\d.]+)</text>", lines("Score", [Series("score", [(2, 0.5)])], "round", shares=True))
    assert texts == ["2"]


def test_lines_name_the_chosen_round() -> None:
    svg = lines("Score", [Series("score", [(1, 0.5), (2, 0.75)])], "round", shares=True, chosen=(2, "chosen: round 2"))
    assert "chosen: round 2" in svg
    assert labels(svg)[1] == "score, round 2: 75.0 %"


def test_heat_cells_are_as_opaque_as_their_weight() -> None:
    svg = heat("Weights", ["a", "b"], ["d", "e"], [[0.25, 0.75], [1.0, 0.0]])
    assert labels(svg) == ["a from d: 25.0 %", "a from e: 75.0 %", "b from d: 100.0 %", "b from e: 0.0 %"]
    cells = [path for path in parsed(svg).iter("path") if path.get("stroke") == "var(--back)"]
    assert [cell.get("fill") for cell in cells] == ["var(--heat)"] * 3 + ["none"]
    assert [cell.get("fill-opacity") for cell in cells] == ["0.25", "0.75", None, None]
    corners = [(float(mark.get("x", "")), float(mark.get("y", ""))) for mark in marks(svg)]
    assert [cell.get("d", "").split()[1:3] for cell in cells] == [[f"{x:.1f}", f"{y:.1f}"] for x, y in corners]


def test_a_scatter_of_many_rows_numbers_them() -> None:
    few = scatter("RA over SA", [ScatterPoint(f"m{i}", 0.1 * i, 0.5) for i in range(DISTINCT)], "SA", "RA")
    many = scatter("RA over SA", [ScatterPoint(f"m{i}", 0.1 * i, 0.5) for i in range(DISTINCT + 1)], "SA", "RA")
    numbers = [str(i) for i in range(1, DISTINCT + 2)]
    assert not {found.text for found in parsed(few).iter("text")} & {f"{i}  m{i}" for i in range(DISTINCT)}
    found = [found.text for found in parsed(many).iter("text")]
    on_points = [t.text for t in parsed(many).iter("text") if t.get("fill") == "var(--back)"]
    assert on_points == numbers
    assert [f"{i}  m{i - 1}" for i in range(1, DISTINCT + 2)] == [t for t in found if t and "  m" in t]  # in the key
    assert labels(many)[1] == "m1: SA 10.0 %, RA 50.0 %"


def test_points_on_top_of_each_other_are_not_named_wrongly() -> None:
    svg = scatter(
        "RA over SA",
        [ScatterPoint("one", 0.5, 0.5), ScatterPoint("two", 0.5, 0.5), ScatterPoint("far", 0.9, 0.1)],
        "SA",
        "RA",
    )
    named = [found.text for found in parsed(svg).iter("text")]
    assert named.count("far") == 2  # in the key and beside its point
    assert named.count("one") == named.count("two") == 1  # in the key only


def test_numbers_for_people() -> None:
    assert amount(2_943_630_704_640, "MAC") == "2.94 TMAC"
    assert amount(999_600, "B") == "1.00 MB"
    assert amount(12, "B") == "12.0 B"
    assert accuracy(None) == "–"
    assert [points(value) for value in (0.0125, -0.0125, 0.0001)] == ["+1.2", "−1.2", "0.0"]
    assert [probability(p) for p in (0.0004, 0.0123)] == ["< 0.001", "0.012"]
