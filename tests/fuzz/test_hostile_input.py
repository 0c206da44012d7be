"""Whatever comes in, it works or it is refused by us, and nothing is written elsewhere. `make fuzz` tries far more."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import strategies as st

from fuzz.bombs import HEADROOM
from fuzz.cases import ACCEPTED, REFUSED, Subject, outcome, refusal
from fuzz.files import FORMATS
from fuzz.soak import explode, fuzz, share
from fuzz.subjects import SUBJECTS

QUICK = {"run directory: against": 1, "run directory: evaluate": 1, "run directory: resume": 2, "command line: run": 3}
"""Fewer cases where each takes long."""


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.name)
def test_hostile_input(subject: Subject) -> None:
    cases = QUICK.get(subject.name, 4 if "command" in subject.name or "anything" in subject.name else 8)
    tally = fuzz(subject, cases, number=1)
    assert tally.failure is None
    assert tally.counts.keys() <= {ACCEPTED, REFUSED}


@pytest.mark.parametrize("kind", FORMATS)
def test_whole_files_are_read(kind: str, tmp_path: Path) -> None:
    file = FORMATS[kind]
    if kind == "checksums":
        (tmp_path / "mnist.npz").write_bytes(b"")
    (tmp_path / file.name).write_bytes(file.whole)
    assert refusal(lambda: file.read(tmp_path / file.name)) == ACCEPTED


def test_subjects_have_names_of_their_own() -> None:
    assert max(Counter(subject.name for subject in SUBJECTS).values()) == 1


def test_shares_add_up_to_at_least_what_was_asked() -> None:
    shares = share(12_000)
    assert 12_000 <= sum(shares.values()) < 12_000 + len(SUBJECTS)


def _raise(error: Exception) -> None:
    raise error


class TestTheJudge:
    """The judge of all these cases can find fault."""

    @pytest.mark.parametrize(
        "error",
        [KeyError("x"), IndexError(), ValueError("no"), ZeroDivisionError(), RecursionError(), MemoryError()],
        ids=repr,
    )
    def test_other_errors_are_faults(self, error: Exception) -> None:
        with pytest.raises(AssertionError, match="not an error for a user"):
            refusal(lambda: _raise(error))

    def test_an_error_from_elsewhere_is_a_fault_whatever_it_says(self) -> None:
        with pytest.raises(AssertionError, match="not an error for a user"):
            refusal(lambda: _raise(ValueError("got x; expected y")))

    def test_writing_elsewhere_is_a_fault(self, tmp_path: Path) -> None:
        elsewhere = tmp_path / "elsewhere.txt"
        writes = Subject("x", st.none(), lambda _, __: elsewhere.write_text("x"))
        with pytest.raises(AssertionError, match=r"written outside .*elsewhere\.txt"):
            outcome(writes, None)

    @pytest.mark.parametrize("change", ["mkdir", "unlink", "rename", "symlink_to"])
    def test_so_is_every_other_change(self, change: str, tmp_path: Path) -> None:
        there = tmp_path / "there"
        if change not in ("mkdir", "symlink_to"):
            there.write_text("x")
        target = (tmp_path / "target",) if change in ("rename", "symlink_to") else ()
        changes = Subject("x", st.none(), lambda _, __: getattr(there, change)(*target))
        with pytest.raises(AssertionError, match="written outside"):
            outcome(changes, None)

    def test_a_link_is_no_way_out(self, tmp_path: Path) -> None:
        def through_link(_: object, folder: Path) -> None:
            (folder / "link").symlink_to(tmp_path)
            (folder / "link" / "x").write_text("x")

        with pytest.raises(AssertionError, match="written outside"):
            outcome(Subject("x", st.none(), through_link), None)

    @pytest.mark.parametrize("event", ["open", "mkdir", "rename", "unlink", "rmdir"])
    def test_a_handle_is_no_way_out(self, event: str, tmp_path: Path) -> None:
        (tmp_path / "there").mkdir()
        (tmp_path / "file").touch()

        def through_handle(_: object, __: Path) -> None:
            handle = os.open(tmp_path, os.O_RDONLY)
            try:
                uses: dict[str, Callable[[], object]] = {
                    "open": lambda: os.close(os.open("x", os.O_WRONLY | os.O_CREAT, dir_fd=handle)),
                    "mkdir": lambda: os.mkdir("y", dir_fd=handle),
                    "rename": lambda: os.replace("file", "z", src_dir_fd=handle, dst_dir_fd=handle),
                    "unlink": lambda: os.unlink("file", dir_fd=handle),
                    "rmdir": lambda: os.rmdir("there", dir_fd=handle),
                }
                uses[event]()
            finally:
                os.close(handle)

        with pytest.raises(AssertionError, match="written outside"):
            outcome(Subject("x", st.none(), through_handle), None)

    def test_writing_in_the_folder_is_none(self) -> None:
        writes = Subject("x", st.none(), lambda _, folder: (folder / "x").write_text("x"))
        assert outcome(writes, None) == ACCEPTED

    def test_the_seed_decides_the_cases(self) -> None:
        seen: list[list[int]] = []

        def remember(value: int, _: Path) -> None:
            seen[-1].append(value)

        for number in (1, 1, 2):
            seen.append([])
            assert fuzz(Subject("x", st.integers(), remember), 5, number).tried == 5
        assert seen[0] == seen[1] != seen[2]


@pytest.mark.slow
def test_bombs_do_not_go_off() -> None:
    bombs = explode()
    assert len(bombs) > 15
    assert [bomb for bomb in bombs if bomb["happened"] != REFUSED] == []


@pytest.mark.slow
def test_the_limit_on_memory_works() -> None:
    code = f"from fuzz.bombs import limited\nwith limited():\n    bytes({HEADROOM})\n"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "MemoryError" in done.stderr


def test_results_of_the_soak_are_complete() -> None:
    path = Path(__file__).parents[2] / "results" / "reliability" / "fuzz.json"
    found = json.loads(path.read_text(encoding="utf-8"))
    assert found["made_by"].startswith("make fuzz")
    told = " ".join(row["fault"] for row in found["rows"])
    assert [subject.name for subject in SUBJECTS if subject.name.split(": ")[-1] not in told] == []
    assert sum(row["tried"] for row in found["rows"]) >= 10_000
    assert {row["lost"] for row in found["rows"]} == {"nothing"}
