"""Files that are whole or absent, whatever happens while they are written."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


class StorageError(RuntimeError):
    """A run directory or checkpoint that cannot be used; the message says what was found and what helps."""


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that it is never seen half written, even after a crash or with a full disk."""
    try:
        place_file(prepare_file(path, content), path)
    except OSError as error:
        raise cannot_write(path, error) from error


def prepare_file(path: Path, content: bytes) -> Path:
    """Write the content beside the file it is for, safely on disk; returns where. If that fails nothing is left."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return temporary


def place_file(temporary: Path, path: Path) -> None:
    """Rename a prepared file into place, in place of what may be there."""
    try:
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync(path.parent)


def append_line(path: Path, line: str) -> None:
    """Add a line to a file and make sure it is on disk. A crash may cut it off: readers leave out such an end."""
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise cannot_write(path, error) from error


def cannot_write(path: Path, error: OSError) -> StorageError:
    """What to say when a file cannot be written: the disk is full, or the directory read-only."""
    return StorageError(
        f"got {path}, which cannot be written ({error.strerror or error}); expected a directory that can be written "
        "and has room. What was there before is whole: make room or change the permissions, then continue with "
        "--resume, or choose another --out."
    )


def _sync(folder: Path) -> None:
    """Make sure that renames in the folder survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
