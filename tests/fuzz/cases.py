"""What a fuzz case is: hostile input is drawn, tried in a folder of its own, and either works or is refused by us."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib.font_manager  # noqa: F401  (writes its own cache on its first import, so before any subject runs)
from hypothesis.strategies import SearchStrategy

from fedrbn import cli
from fedrbn.errors import FedRBNError

ACCEPTED, REFUSED = "accepted", "refused"
IN_MEMORY = next((path for path in ("/dev/shm",) if os.access(path, os.W_OK)), None)  # noqa: S108  (mkdtemp's names)
"""Where cases have their folders, if there is such a place: run directories are written with fsync, which is slow."""


@dataclass(frozen=True)
class Subject:
    """One kind of input."""

    name: str
    inputs: SearchStrategy[Any]
    attempt: Callable[[Any, Path], object]
    """Tries an input; the folder is the only place where it may write. Returns REFUSED if it was told so in its way."""
    weight: int = 10
    """How many cases it gets, compared with others: what takes long gets fewer."""


def outcome(subject: Subject, given: Any) -> str:
    """Try one input: ACCEPTED or REFUSED; everything else is an AssertionError."""
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=IN_MEMORY) as name:
        folder = Path(name).resolve() / "case"
        folder.mkdir()
        with writes_only_in(folder):
            return refusal(lambda: subject.attempt(given, folder))


def refusal(action: Callable[[], object]) -> str:
    """ACCEPTED, or REFUSED if it ended in an error that this package raised on purpose, with got and expected."""
    try:
        result = action()
    except (ValueError, TypeError, RuntimeError, OSError) as error:
        said = str(error)
        if not (isinstance(error, FedRBNError) and "got " in said and "expected" in said):
            raise AssertionError(f"not an error for a user: {error!r}") from error
        return REFUSED
    except Exception as error:
        raise AssertionError(f"not an error for a user: {error!r}") from error
    return REFUSED if isinstance(result, str) and result == REFUSED else ACCEPTED


def command(*arguments: str) -> str:
    """Run the command line in this process, as its entry point does: REFUSED if the exit code was 2."""
    out = io.StringIO()
    before = sys.argv, [*sys.path]
    sys.argv = ["fedrbn", *arguments]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            cli.main()
        code: object = 0
    except SystemExit as end:
        code = end.code or 0
    finally:
        sys.argv, sys.path[:] = before
    said = out.getvalue()
    assert code in (0, 1, 2), f"exit code {code}: {said[-500:]}"
    assert "Traceback" not in said, said[-2000:]
    assert code != 2 or ("got " in said and "expected" in said) or "Usage:" in said, said[-500:]
    return REFUSED if code == 2 else ACCEPTED


_allowed: list[Path] = []
"""Where writing is allowed now; anywhere if empty."""
_trespasses: list[str] = []
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CHANGES: dict[str, tuple[tuple[int, int | None], ...]] = {
    "os.mkdir": ((0, 2),), "os.remove": ((0, 1),), "os.rmdir": ((0, 1),), "os.truncate": ((0, None),),
    "os.rename": ((0, 2), (1, 3)), "os.link": ((1, 3),), "os.symlink": ((1, 2),),
}  # fmt: skip
"""Events of the interpreter that change the file system: which of their arguments are paths that change, and which are
the handles of the folders that these are relative to."""
_handles: list[int | None] = [None]
"""The folder that `os.open` is called with: the interpreter's event does not tell."""


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    if not _allowed:
        return
    paths: list[tuple[Any, int | None]] = []
    if event == "open" and isinstance(arguments[2], int) and arguments[2] & _WRITING:
        paths = [(arguments[0], _handles[-1])]
    elif event in _CHANGES:
        paths = [(arguments[path], None if at is None else arguments[at]) for path, at in _CHANGES[event]]
    for path, handle in paths:
        if not isinstance(path, str | bytes | os.PathLike):
            continue
        # A link is followed where a file is opened, unless the flags say no; all the others replace or remove it.
        follow = event == "open" and not arguments[2] & os.O_NOFOLLOW
        if not _inside(_absolute(os.fsdecode(path), handle), follow):
            _trespasses.append(f"{event} {os.fsdecode(path)}")


def _absolute(path: str, handle: int | None) -> str:
    """The path, which may be relative to the folder of a handle."""
    return path if handle in (None, -1) else os.path.join(os.readlink(f"/proc/self/fd/{handle}"), path)  # noqa: PTH118, PTH115


def _inside(path: str, follow: bool) -> bool:
    if path == os.devnull:
        return True
    try:
        place = Path(os.path.realpath(path)) if follow else Path(os.path.realpath(Path(path).parent), Path(path).name)
    except ValueError:  # a NUL: the system refuses such a path
        return True
    return any(place.is_relative_to(root) for root in _allowed)


sys.addaudithook(_note)


@contextlib.contextmanager
def writes_only_in(folder: Path) -> Iterator[None]:
    """Fails if anything in this process opens a file for writing, moves or removes one, outside of the folder.

    The interpreter tells of every such call, whatever the path looks like; a tree beside the folder is compared too.
    """
    sentinel = folder.parent / "outside"
    sentinel.mkdir()
    (sentinel / "precious").write_text("untouched")
    bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    _allowed.append(folder.resolve())
    opening = os.open

    def opened(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        _handles.append(dir_fd)
        try:
            return opening(path, flags, mode, dir_fd=dir_fd)
        finally:
            _handles.pop()

    os.open = opened
    try:
        yield
    finally:
        os.open = opening
        _allowed.pop()
        sys.dont_write_bytecode = bytecode
    found = _trespasses[:]
    _trespasses.clear()
    assert not found, f"written outside of the folder: {found}"
    assert {path.name for path in folder.parent.iterdir()} == {folder.name, "outside"}
    assert [path.read_text() for path in sentinel.iterdir()] == ["untouched"]
