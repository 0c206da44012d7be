"""One look for all figures: labels that do not overlap, files that are the same every time."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedrbn.figures import style


@pytest.mark.parametrize(
    ("wanted", "placed"),
    [
        ([1.0, 5.0], [1.0, 5.0]),  # far enough apart: nobody moves
        ([1.0, 1.0], [0.0, 2.0]),  # around their mean, two apart
        ([5.0, 4.0, 0.0], [5.5, 3.5, 0.0]),  # mean 4.5 ± 1; the third is in nobody's way
        # 0 and 1 stand at −0.5 and 1.5; 2 is then too close, so all three stand around their mean 1: −1, 1, 3
        ([0.0, 1.0, 2.0], [-1.0, 1.0, 3.0]),
        ([], []),
    ],
)
def test_labels_move_as_little_as_possible(wanted: list[float], placed: list[float]) -> None:
    assert style.spread(wanted, 2.0) == pytest.approx(placed)


@given(st.lists(st.floats(-100, 100), max_size=8), st.floats(0.01, 20))
def test_labels_keep_their_distance_and_order(wanted: list[float], gap: float) -> None:
    placed = style.spread(wanted, gap)
    order = sorted(range(len(wanted)), key=lambda index: wanted[index])
    moved = [placed[index] for index in order]
    assert all(high - low >= gap - 1e-6 for low, high in itertools.pairwise(moved))
    assert sum(moved) == pytest.approx(sum(wanted), abs=1e-6)  # blocks stand around their mean


def test_methods_keep_their_look_and_strangers_get_another() -> None:
    found = style.marks(["FATBN", "mine", "yours"])
    assert found["FATBN"] == style.METHODS["FATBN"]
    assert len({mark.colour for mark in found.values()}) == 3


def drawing() -> style.Figure:
    figure = style.page(style.COLUMN, 2.0)
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1])
    return style.finish(figure, "where it is from", {axes: [style.End("a line", 1, 1, "black")]})


def test_the_same_bytes_every_time(tmp_path: Path) -> None:
    for name in ("one", "two"):
        with style.applied():
            style.save(drawing(), tmp_path / name, "a title")
    for suffix in ("svg", "png"):
        assert (tmp_path / f"one.{suffix}").read_bytes() == (tmp_path / f"two.{suffix}").read_bytes()


def test_text_of_an_svg_is_text(tmp_path: Path) -> None:
    with style.applied():
        svg, png = style.save(drawing(), tmp_path / "deep/one.png", "a title")
    assert (svg, png) == (tmp_path / "deep/one.svg", tmp_path / "deep/one.png")
    content = svg.read_text()
    for text in (">a line</text>", ">where it is from</text>", "<dc:title>a title</dc:title>"):
        assert text in content
    assert "<dc:date>" not in content


def test_other_formats_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"ends in \.svg or \.png"):
        style.save(drawing(), tmp_path / "one.pdf", "")


def test_the_look_does_not_outlive_its_block() -> None:
    before = style.mpl.rcParams["svg.fonttype"]
    with style.applied():
        assert style.mpl.rcParams["svg.fonttype"] == "none"
    assert style.mpl.rcParams["svg.fonttype"] == before
