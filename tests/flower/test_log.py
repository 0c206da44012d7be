"""The event log of a deployment holds whole lines, whatever happened to the disk or to who wrote it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedrbn.flower.log import EventLog, events
from full_disk import files_of_at_most


def test_an_event_that_a_full_disk_has_no_room_for_stops_nothing_and_leaves_no_half_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "events.jsonl"
    log = EventLog(path)
    log("before")
    with files_of_at_most(path.stat().st_size + 10):  # ten bytes of the next line fit
        log("lost", client="pen-0")
    log("after")
    assert [event["event"] for event in events(path)] == ["before", "after"]
    echoed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [event["event"] for event in echoed] == ["before", "lost", "after"]
    assert "File too large" in echoed[1]["unwritten"]
    assert "unwritten" not in echoed[2]


def test_a_line_that_a_killed_writer_left_is_not_joined_to_the_next(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text('{"event": "joined"}\n{"event": "rou')
    EventLog(path, echo=False)("waiting")
    assert [event["event"] for event in events(path)] == ["joined", "waiting"]


def test_a_file_that_is_nothing_but_a_cut_off_line_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text('{"event": "wai')
    EventLog(path, echo=False)("waiting")
    assert [event["event"] for event in events(path)] == ["waiting"]
