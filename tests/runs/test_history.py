"""A run as its records tell it, and the sparklines that show it."""

from __future__ import annotations

import math
from typing import Any

import pytest

from fedrbn.evaluation.records import RoundRecord
from fedrbn.runs.history import RoundHistory, sparkline
from fedrbn.types import Role

ROLES = {"a": Role.AT, "b": Role.ST, "c": Role.ST}


def record(number: int, seconds: float = 2.0, **more: Any) -> RoundRecord:
    clients = {"a": {"loss": 1.0}, "b": {"loss": 2.0}}
    return RoundRecord.from_json({"round": number, "lr": 0.1, "clients": clients, "seconds": seconds, **more})


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ([], ""),
        ([0, 1], "▁█"),
        (range(8), "▁▂▃▄▅▆▇█"),  # n/7 of the range in eight heights: ⌊8n/7⌋ = 0, 1, 2, 3, 4, 5, 6, and 8 → the top one
        ([1, 0.5, 0], "█▅▁"),  # half of the range: ⌊8 · 0.5⌋ = 4, the fifth glyph
        ([3, 3], "▅▅"),  # no range at all: the middle
        ([0, math.nan, 1, math.inf], "▁!█!"),
        ([math.nan], "!"),
    ],
)
def test_sparkline(values: list[float], shown: str) -> None:
    assert sparkline(values) == shown


def test_long_sparklines_average_neighbours() -> None:
    # cut at 0, 2, 4: means 1 and 12, the lowest and the highest; in three parts at 0, ⌊1.33⌉ = 1, ⌊2.67⌉ = 3, 4:
    # 0, (2 + 10)/2 = 6, 14 → heights ⌊8 · 6/14⌋ = 3
    assert sparkline([0, 2, 10, 14], width=2) == "▁█"
    assert sparkline([0, 2, 10, 14], width=3) == "▁▄█"
    assert len(sparkline([*range(300)], width=24)) == 24


def test_a_round_counts_who_took_part_and_who_failed() -> None:
    failures = [{"client": "c", "round": 3, "cause": "x"}, {"client": "c", "round": 3, "cause": "again"}]
    validation = {"score": 0.4, "ra_at": 0.2, "sa_st": 0.5}
    told = record(3, failures=failures, validation=validation)
    history = RoundHistory(10, ROLES).after([told])
    assert [history.took_part(told, role) for role in (Role.AT, Role.ST)] == [1, 1]
    assert (told.failed, told.loss, told.ra_at, told.sa_st) == (1, 1.5, 0.2, 0.5)  # (1 + 2)/2


def test_a_round_without_validation_and_without_uploads() -> None:
    told = RoundRecord(round=1, clients={}, seconds=1.0, validation=None)
    assert [RoundHistory(10, ROLES).took_part(told, role) for role in (Role.AT, Role.ST)] == [0, 0]
    assert (told.failed, told.loss, told.ra_at, told.sa_st) == (0, None, None, None)


def test_time_left_is_what_recent_rounds_took() -> None:
    history = RoundHistory(10, ROLES)
    assert history.seconds_left is None
    history = history.after([record(1, 3.0), record(2, 5.0)])
    assert history.finished == 2
    assert history.seconds_left == pytest.approx(4.0 * 8)  # eight rounds to go at (3 + 5) / 2 seconds
    slow_start = RoundHistory(100, ROLES).after([record(1, 1000.0), *(record(n, 1.0) for n in range(2, 22))])
    assert slow_start.seconds_left == pytest.approx(79.0)  # the first of 21 rounds is not recent any more


def test_a_resumed_run_counts_from_where_it_was() -> None:
    history = RoundHistory(10, ROLES, finished=6)
    assert history.finished == 6
    assert history.after([]).finished == 6
    assert history.after([record(7)]).seconds_left == pytest.approx(2.0 * 3)


def test_until_gives_the_story_as_it_was() -> None:
    history = RoundHistory(5, ROLES).after([record(1), record(2), record(3)])
    assert history.until(2) == RoundHistory(5, ROLES).after([record(1), record(2)])


def test_values_skip_rounds_that_were_not_validated() -> None:
    history = RoundHistory(3, ROLES).after([record(1), record(2, validation={"ra_at": None, "sa_st": 0.5}), record(3)])
    assert history.values("sa_st") == [0.5]
    assert history.values("ra_at") == []
    assert history.values("loss") == [1.5, 1.5, 1.5]
