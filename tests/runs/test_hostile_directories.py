"""A run directory that somebody else has filled writes nowhere else, waits for nobody, and fills no memory.

Every name that a run directory can hold × everything that can be there instead × every command that opens one.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fedrbn
from fedrbn import config
from fedrbn.errors import StorageError
from fedrbn.evaluation.records import RoundRecord
from fedrbn.files import MOST_LINE, Folder
from fedrbn.runs.directory import RunDirectory
from fuzz.cases import ACCEPTED, REFUSED, command, refusal
from time_limit import in_time

FILES = (
    ".lock",
    "config.toml",
    "federation.json",
    "rounds.jsonl",
    "evaluations.jsonl",
    "stops.jsonl",
    "attempts.jsonl",
    "last.safetensors",
    "last.previous.safetensors",
    "best.safetensors",
    "best.previous.safetensors",
    "rounds.csv",
    "answers/0.safetensors",
    "clients/plain-0/1.safetensors",
)
FOLDERS = ("answers", "clients", "clients/plain-0")
GIGABYTES = 3 * 2**29
"""1.5 GB, of which nothing is on the disk."""
SECONDS = 60
SETTINGS: dict[str, Any] = {
    "data": {"domains": ["plain"]},
    "federation": {"users_per_domain": 2, "at": 0.5, "fraction": 0.03, "test_samples": 2},
    "model": {"width": 1 / 16},
    "train": {"rounds": 2, "validate_every": 1, "lr": 0.05},
    "attack": {"steps": 1},
    "run": {"workers": 1},
}


class Stop:
    """A watcher that ends the run after its first round."""

    def training(self, *_: object) -> None: ...

    def answered(self, *_: object) -> None: ...

    def evaluating(self, *_: object) -> None: ...

    def round_finished(self, _: RoundRecord) -> None:
        raise KeyboardInterrupt


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "finished"
    fedrbn.run(config.make(SETTINGS), path)
    return path


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "interrupted"
    with contextlib.suppress(KeyboardInterrupt):
        fedrbn.run(config.make(SETTINGS), path, watcher=Stop())
    return path


def clear(path: Path) -> Path:
    """The place of a file, with what was there gone and the folders before it made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    return path


def link(path: Path, precious: Path) -> None:
    clear(path).symlink_to(precious)


def dangling(path: Path, precious: Path) -> None:
    clear(path).symlink_to(precious.parent / "made by the command")


def hard_link(path: Path, precious: Path) -> None:
    clear(path).hardlink_to(precious)


def pipe(path: Path, _: Path) -> None:
    os.mkfifo(clear(path))


def bound_socket(path: Path, _: Path) -> None:
    clear(path)
    with contextlib.chdir(path.parent), socket.socket(socket.AF_UNIX) as made:  # names of sockets are short
        made.bind(path.name)


def folder(path: Path, _: Path) -> None:
    clear(path).mkdir()


def sparse(path: Path, _: Path) -> None:
    with clear(path).open("wb") as file:
        file.truncate(GIGABYTES)


def linked_folder(path: Path, precious: Path) -> None:
    clear(path).symlink_to(precious.parent, target_is_directory=True)


HARMS: dict[str, Callable[[Path, Path], None]] = {
    "a link": link,
    "a link to what is not there": dangling,
    "a hard link": hard_link,
    "a pipe": pipe,
    "a socket": bound_socket,
    "a folder": folder,
    "a sparse file": sparse,
}
FOLDER_HARMS: dict[str, Callable[[Path, Path], None]] = {
    "a linked folder": linked_folder,
    "a pipe": pipe,
    "a file": link,
}

COMMANDS: dict[str, tuple[str, ...]] = {
    "run": ("run", "-q", "--rounds", "1", "--out"),
    "resume": ("run", "-q", "--workers", "1", "--resume"),
    "evaluate": ("evaluate", "-q", "--workers", "1", "--no-adaptive", "--no-checks", "--samples", "1"),
    "report": ("report", "--no-images", "--no-checks", "--out", "page.html"),
    "watch": ("watch", "--every", "0.1"),
    "export": ("export", "--client", "plain-0", "--out", "model.safetensors"),
    "onboard": ("onboard", "--data", "digits-mini", "--domain", "plain", "--batches", "1", "--samples", "2"),
}
USES = {
    "run": FILES + FOLDERS,
    "resume": FILES[:-2] + FOLDERS,
    "evaluate": FILES[:-2] + FOLDERS,
    "report": FILES[:6],
    "watch": FILES[:5],
    "export": ("config.toml", "federation.json", "evaluations.jsonl", "best.safetensors"),
    "onboard": ("config.toml", "federation.json", "best.safetensors"),
}
"""What each command opens: whatever else is there under such a name is refused. The rest it leaves alone."""
LENGTHY = ("resume", "evaluate", "onboard")
"""Commands that compute for seconds if nothing stops them."""


def precious_folder(place: Path) -> Path:
    """Files of somebody's, under the names that a run writes and removes."""
    place.mkdir()
    for name in ("precious", ".x.tmp", "0.safetensors", "1.safetensors"):
        (place / name).write_text(f"{name} is dear to me")
    (place / "plain-0").mkdir()
    (place / "plain-0" / ".y.tmp").write_text("dear")
    return place / "precious"


def contents(place: Path) -> dict[str, bytes]:
    return {str(path.relative_to(place)): path.read_bytes() for path in sorted(place.rglob("*")) if path.is_file()}


def attempt(run: Path, name: str, harm: Callable[[Path, Path], None], use: str, place: Path) -> str:
    """Plant the harm in a copy of the run and use it: nothing outside may change, and nothing hang."""
    place.mkdir()
    copy = place / "run"
    shutil.copytree(run, copy)
    precious = precious_folder(place / "outside")
    harm(copy / name, precious)
    before = contents(place / "outside")
    first, *rest = COMMANDS[use]
    with in_time(SECONDS), contextlib.chdir(place):
        told = command(first, *rest, str(copy))
    assert contents(place / "outside") == before, f"{use} with {name} has changed somebody's files"
    return told


@pytest.mark.parametrize("harm", [harm for harm in HARMS if harm not in ("a hard link", "a sparse file")])
@pytest.mark.parametrize("use", COMMANDS)
def test_what_is_no_file_in_place_of_one_is_refused(
    use: str, harm: str, finished: Path, interrupted: Path, tmp_path: Path
) -> None:
    run = interrupted if use == "resume" else finished
    for number, name in enumerate(name for name in FILES if name in USES[use]):
        told = attempt(run, name, HARMS[harm], use, tmp_path / str(number))
        assert told == REFUSED, f"{use} with {harm} as {name}"


@pytest.mark.parametrize("harm", FOLDER_HARMS)
@pytest.mark.parametrize("use", COMMANDS)
def test_what_is_no_folder_in_place_of_one_is_refused(
    use: str, harm: str, finished: Path, interrupted: Path, tmp_path: Path
) -> None:
    run = interrupted if use == "resume" else finished
    for number, name in enumerate(name for name in FOLDERS if name in USES[use]):
        told = attempt(run, name, FOLDER_HARMS[harm], use, tmp_path / str(number))
        assert told == REFUSED, f"{use} with {harm} as {name}"


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("use", [pytest.param(use, marks=[pytest.mark.slow] * (use in LENGTHY)) for use in COMMANDS])
def test_every_name_with_every_harm_leaves_other_files_alone(
    use: str, harm: str, finished: Path, interrupted: Path, tmp_path: Path
) -> None:
    """Also names that a command does not open, hard links, and files of zeros: it works or is refused."""
    run = interrupted if use == "resume" else finished
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number, name in enumerate(FILES):
        attempt(run, name, HARMS[harm], use, tmp_path / str(number))
        shutil.rmtree(tmp_path / str(number))
    if harm == "a sparse file":
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak < 300_000, "kilobytes"


@pytest.mark.parametrize("name", ["rounds.jsonl", "evaluations.jsonl", "federation.json", "config.toml"])
def test_gigabytes_of_zeros_are_refused_as_text(name: str, finished: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(finished, copy)
    sparse(copy / name, copy)
    run = RunDirectory.open(copy)
    readers = {"config.toml": run.experiment, "federation.json": run.description}
    with pytest.raises(StorageError, match=rf"{name} with text of 1,610,612,736 bytes or more; expected at most"):
        readers.get(name, lambda: run.records(name))()


def test_force_removes_links_and_not_what_they_lead_to(finished: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(finished, copy)
    precious = precious_folder(tmp_path / "outside")
    before = contents(tmp_path / "outside")
    for name in ("rounds.jsonl", "last.safetensors", "stops.jsonl"):
        link(copy / name, precious)
    for name in ("answers", "clients"):
        linked_folder(copy / name, precious)
    fedrbn.run(config.make(SETTINGS), copy, force=True)
    assert contents(tmp_path / "outside") == before
    assert not any(path.is_symlink() for path in copy.iterdir())


class TestFolder:
    """The one place where files of a run directory are opened."""

    def test_a_line_without_end_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "x").write_bytes(b"a\n" + bytes(MOST_LINE + 1))
        with pytest.raises(StorageError, match="with a line of 16,777,217 bytes or more; expected at most 16,777,216"):
            list(Folder(tmp_path).lines("x"))

    def test_whole_lines_are_read_and_a_cut_one_left_out(self, tmp_path: Path) -> None:
        (tmp_path / "x").write_bytes(b"one\n\ntwo\nthr")
        assert list(Folder(tmp_path).lines("x")) == [b"one", b"", b"two"]

    def test_a_file_with_another_name_elsewhere_is_not_added_to(self, tmp_path: Path) -> None:
        (tmp_path / "precious").write_text("mine\n")
        (tmp_path / "x").hardlink_to(tmp_path / "precious")
        with pytest.raises(StorageError, match=r"has 2 names \(hard links\).*Replace it with a copy"):
            Folder(tmp_path).append("x", "line")
        assert (tmp_path / "precious").read_text() == "mine\n"

    def test_the_folder_itself_may_be_a_link(self, tmp_path: Path) -> None:
        (tmp_path / "disk").mkdir()
        (tmp_path / "runs").symlink_to(tmp_path / "disk")
        Folder(tmp_path / "runs").write("inner/x", b"content")
        assert (tmp_path / "disk" / "inner" / "x").read_bytes() == b"content"

    def test_a_link_anywhere_in_a_name_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "elsewhere" / "deep").mkdir(parents=True)
        (tmp_path / "elsewhere" / "deep" / "x").write_text("mine")
        (tmp_path / "own").mkdir()
        (tmp_path / "own" / "link").symlink_to(tmp_path / "elsewhere")
        own = Folder(tmp_path / "own")
        uses: list[Callable[[str], object]] = [
            own.read,
            own.remove,
            own.remove_folder,
            own.exists,
            lambda name: list(own.lines(name)),
            lambda name: own.write(name, b"theirs"),
            lambda name: own.append(name, "theirs"),
            lambda name: own.open_lock(name, make=True),
            lambda name: own.move(name, name),
        ]
        for use in uses:
            with pytest.raises(StorageError, match=r"own/link, which is a link; expected a folder"):
                use("link/deep/x")
        assert (tmp_path / "elsewhere" / "deep" / "x").read_text() == "mine"

    @pytest.mark.parametrize("name", ["x" * 300, "x" * 300 + "/y"])
    def test_names_that_no_file_can_have(self, name: str, tmp_path: Path) -> None:
        for use in (Folder(tmp_path).read, Folder(tmp_path).exists, Folder(tmp_path).remove):
            assert refusal(lambda use=use: use(name)) == REFUSED  # type: ignore[misc]
        assert refusal(lambda: Folder(tmp_path / name).write("z", b"")) == REFUSED

    def test_devices_are_not_opened(self) -> None:
        for name in ("null", "zero", "tty"):
            with pytest.raises(StorageError, match="which is a device; expected a file"):
                Folder(Path("/dev")).read(name)


@pytest.mark.slow
def test_the_undamaged_run_is_accepted_by_every_command(finished: Path, interrupted: Path, tmp_path: Path) -> None:
    def nothing(*_: object) -> None: ...

    for use in COMMANDS:
        run = interrupted if use == "resume" else finished
        told = attempt(run, ".", nothing, use, tmp_path / use)
        assert told == (REFUSED if use == "run" else ACCEPTED), use
