"""Run directories and tables become values; what cannot be read is refused with the reason."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from fedrbn.errors import StorageError
from fedrbn.report.gather import find, read_run
from fedrbn.report.overview import ending, failures, remarks, settings_tables
from fedrbn.reproduce.table_file import read_table


@pytest.fixture
def copied(trained: Path, tmp_path: Path) -> Path:
    """A copy of the trained run, to be changed."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


def lines_of(file: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def write_lines(file: Path, lines: list[dict[str, object]]) -> None:
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def test_runs_and_results_are_found_alone_and_in_folders(trained: Path, result: Path, tmp_path: Path) -> None:
    assert find([trained]).runs == (trained,)
    assert find([trained.parent, trained]).runs == (trained,)  # once
    assert find([result.parent, trained]).results == (result,)
    with pytest.raises(StorageError, match=r"contains no run and no reproduced table; expected"):
        find([tmp_path])
    with pytest.raises(StorageError, match="got no directory"):
        find([])


def test_a_run_says_what_its_files_say(trained: Path) -> None:
    run = read_run(trained)
    record = lines_of(trained / "evaluations.jsonl")[0]
    assert run.ending is not None
    assert run.ending.mean == record["mean"]
    assert run.ending.users["pen-0"].accuracy("ra") == record["users"]["pen-0"]["ra"]  # type: ignore[index]
    assert [r.round for r in run.rounds] == [1, 2, 3, 4]
    assert len(run.members) == 10
    assert not run.held
    assert run.answers()["pen-0"]["sa"].double().mean().item() == pytest.approx(
        run.ending.users["pen-0"].accuracy("sa")
    )


def test_a_finished_run_says_which_round_was_chosen(trained: Path) -> None:
    run = read_run(trained)
    assert run.ending is not None
    chosen = "the last one was chosen" if run.ending.round == 4 else f"validation chose round {run.ending.round}"
    assert ending(run, 4) == f"Finished: 4 of 4 rounds; {chosen}. No client failed."


def test_an_unfinished_run_says_how_to_go_on(copied: Path) -> None:
    (copied / "evaluations.jsonl").unlink()
    write_lines(copied / "rounds.jsonl", lines_of(copied / "rounds.jsonl")[:3])
    text = ending(read_run(copied), 4)
    assert text.startswith(f"Not finished: 3 of 4 rounds. Continue it with fedrbn run --resume {copied}.")


def test_failures_warnings_and_stops_are_told(copied: Path) -> None:
    (copied / "evaluations.jsonl").unlink()
    lines = lines_of(copied / "rounds.jsonl")[:2]
    lines[0]["failures"] = [{"client": "pen-0", "round": 1, "cause": "died"}]
    lines[1]["failures"] = [{"client": "pen-0", "round": 2, "cause": "late"}]
    lines[1]["warning"] = "the loss diverges"
    write_lines(copied / "rounds.jsonl", lines)
    write_lines(
        copied / "stops.jsonl", [{"round": 3, "failures": [{"client": "pen-1", "round": 3, "cause": "no answer"}]}]
    )
    run = read_run(copied)
    table = failures(run)
    assert table is not None
    assert table.rows == (("pen-0", "late", "2", "1, 2"), ("pen-1", "no answer", "1", "3"))
    assert "2 client(s) failed" in ending(run, 4)
    assert "It stopped in round 3: too few clients answered." in ending(run, 4)
    assert remarks(run) == ("Round 2: the loss diverges",)


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("evaluations.jsonl", '{"method": "fedrbn"}', r"evaluations.jsonl.*Field required.*leave that directory out"),
        ("rounds.jsonl", '{"round": "x", "clients": {}}', r"rounds.jsonl.*round: Input should be a valid integer"),
        ("rounds.jsonl", "[1]", r"rounds.jsonl.*expected one object per line"),
        ("federation.json", "{}", r"federation.json.*cannot be read"),
    ],
)
def test_damaged_files_are_refused(copied: Path, name: str, content: str, reason: str) -> None:
    (copied / name).write_text(content + "\n", encoding="utf-8")
    with pytest.raises(StorageError, match=reason):
        read_run(copied)


def test_an_evaluation_whose_attack_is_not_described_is_refused(copied: Path) -> None:
    lines = lines_of(copied / "evaluations.jsonl")
    write_lines(copied / "evaluations.jsonl", [{**lines[0], "attack": "other"}])
    with pytest.raises(StorageError, match="attack 'other' is not among its attacks"):
        read_run(copied)


def test_a_damaged_table_is_refused(tmp_path: Path) -> None:
    (tmp_path / "table.json").write_text('{"name": 1}', encoding="utf-8")
    with pytest.raises(StorageError, match=r"table.json.*expected a table of fedrbn reproduce"):
        read_table(tmp_path / "table.json")


def test_settings_that_differ_come_first(trained: Path) -> None:
    changed, everything = settings_tables(read_run(trained).experiment)
    found = {row[0]: row[1:3] for row in changed.rows}
    assert found["federation.users_per_domain"] == ("2", "5")  # digits-mini has five by default
    assert found["attack.steps"] == ("2", "7")
    assert found["data.name"] == ("digits-mini", "digits-mini")
    assert "run.workers" not in found  # says where, not what
    assert "attack.eps" not in found
    assert ("attack.eps", "8/255") in {row[:2] for row in everything.rows}
