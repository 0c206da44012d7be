"""Times for people."""

from __future__ import annotations

import pytest

from fedrbn.cost.durations import duration


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "0 s"),
        (89, "89 s"),
        (90, "2 min"),  # 1.5 min, rounded to even
        (5399, "90 min"),
        (7200, "2 h"),
        (9000, "2.5 h"),  # 9000 / 3600
        (129_599, "36 h"),
        (129_600, "1.5 d"),  # 36 h
        (864_000, "10 d"),
    ],
)
def test_a_time_in_its_largest_fitting_unit(seconds: float, text: str) -> None:
    assert duration(seconds) == text
