"""What people see while a run trains."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType

import fedrbn
from fedrbn.config import Experiment
from fedrbn.evaluation.records import RoundRecord
from fedrbn.federated.protocol import Answers, Failure, Upload
from fedrbn.runs.display import Activity, Display, panel, plain_line
from fedrbn.runs.history import RoundHistory
from fedrbn.types import Role

ROLES = {"a": Role.AT, "b": Role.ST}


def record(number: int, **more: Any) -> RoundRecord:
    clients = {"a": {"loss": 1.0}, "b": {"loss": 2.0 / number}}
    return RoundRecord.from_json({"round": number, "clients": clients, "seconds": 10.0, **more})


def text(renderable: RenderableType) -> str:
    page = io.StringIO()
    Console(file=page, width=120).print(renderable)
    return page.getvalue()


def test_activity_counts_clients_by_role_and_failures() -> None:
    now = Activity("training", 3)
    now.count(Upload("a", 0, {}, {}, 4, {"loss": 0.5}), Role.AT)
    assert str(now) == "AT 1  ST 0  failed 0  of 3   a (AT) loss 0.500"
    now.count(Failure("b", 0, "lost"), Role.ST)
    now.count(Answers("c", 0, {}), Role.ST)
    assert (now.done, str(now)) == (3, "AT 1  ST 1  failed 1  of 3   c")


def test_the_panel_shows_rounds_sparklines_and_clients() -> None:
    history = RoundHistory(4, ROLES).after(
        [
            record(1, validation={"ra_at": 0.1, "sa_st": 0.6}),
            record(2, validation={"ra_at": 0.3, "sa_st": 0.5}),
        ]
    )
    lines = [" ".join(line.split()) for line in text(panel(history, "mine", "training", "AT 1")).splitlines()]
    assert lines[0].startswith("mine round")
    assert lines[0].endswith("2/4 20 s left")  # two rounds to go, ten seconds each
    assert lines[1:] == [
        "RA of AT users ▁█ 30.0% best 30.0%",
        "SA of ST users █▁ 50.0% best 60.0%",
        "loss █▁ 1.000",  # (1 + 2)/2, then (1 + 1)/2
        "training: clients AT 1",
    ]


def test_a_panel_before_the_first_round_claims_nothing() -> None:
    shown = text(panel(RoundHistory(4, ROLES), "mine", "starting", ""))
    assert "0/4" in shown
    assert "left" not in shown
    assert "loss" not in shown


def test_a_plain_line_keeps_the_last_validation() -> None:
    history = RoundHistory(4, ROLES).after([record(1, validation={"ra_at": 0.25, "sa_st": None}), record(2)])
    assert plain_line(history.until(1), "t") == "t: round 1/4  loss 1.500  validation RA of AT users 25.0%  30 s left"
    assert plain_line(history, "t") == "t: round 2/4  loss 1.000  validation RA of AT users 25.0%  20 s left"
    failed = history.after([record(3, failures=[{"client": "b", "round": 3, "cause": "x"}])])
    assert "  1 failed  10 s left" in plain_line(failed, "t")


def test_failures_and_warnings_are_told_on_and_off_a_terminal() -> None:
    for terminal in (True, False):
        page = io.StringIO()
        with Display(Console(file=page, force_terminal=terminal, width=120), "t") as display:
            display.history = RoundHistory(3, ROLES)
            failures = [{"client": "b", "round": 1, "cause": "[lost]"}]
            display.round_finished(record(1, failures=failures, warning="diverges"))
        assert "t: client b is left out of round 1: [lost]" in page.getvalue()
        assert "t: warning: diverges" in page.getvalue()


def test_a_real_run_on_a_terminal(tiny: Callable[..., Experiment], tmp_path: Path) -> None:
    page = io.StringIO()
    experiment = tiny(train={"rounds": 2, "validate_every": 1}, federation={"users_per_domain": 1, "at": ["pen"]})
    with Display(Console(file=page, force_terminal=True, width=120), "mine") as display:
        fedrbn.run(experiment, tmp_path / "run", watcher=display)
        assert display.activity.name == "mine evaluating"
        assert display.activity.answered == {"AT": 1, "ST": 4, "failed": 0}
    assert display.history.finished == 2
    assert len(display.history.values("sa_st")) == 2
    said = " ".join(page.getvalue().split())
    assert "5 clients (1 AT, 4 ST)" in said
    assert "2 rounds to go, 1 worker(s); estimated memory" in said
