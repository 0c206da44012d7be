"""Safe access to files in a folder with untrusted content: atomic writes, and reads up to a size limit.

A run directory can be copied from anywhere. One of its files may really be a link to a file of yours, a pipe that
nobody writes to, or gigabytes of zeros. So everything below such a folder is opened through a `Folder`:

- no link is followed, neither in the name nor in its parent folders (`O_NOFOLLOW`, one handle per folder);
- only regular files are opened, and opening never blocks (`O_NONBLOCK`);
- nothing is truncated: files are replaced as a whole, or appended to if they have no other hard link;
- text is read up to a limit that is checked before memory is allocated.

The folder itself is the one that the user named. It may be a link: a store of runs is often on another disk.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from fedrbn.errors import StorageError

MOST_SETTINGS = 1 << 20
"""Largest config file, in bytes."""
MOST_NAMED = 1 << 24
"""Largest config or fleet file that a user names, in bytes: 16 MiB hold a fleet of 100,000 devices."""
MOST_TEXT = 1 << 27
"""Largest text file of any other kind, in bytes: 128 MiB hold the records of 1,000 clients over 1,000 rounds."""
MOST_LINE = 1 << 24
"""Longest line, in bytes: 16 MiB hold a round of 100,000 clients."""
_OWN = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_LEFTOVER = re.compile(r"\..*\.tmp", re.DOTALL)
_KINDS = {
    stat.S_IFLNK: "a link",
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFREG: "a file",
}


def open_named(path: Path) -> BufferedReader:
    """Open a file that a user, or another file, has named. It may be a link, but only to a regular file.

    A pipe or device is an OSError: reading it could take forever or fill the memory.
    """
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    kind = stat.S_IFMT(os.fstat(file.fileno()).st_mode)
    if kind != stat.S_IFREG:
        file.close()
        raise OSError(f"it is {_KINDS.get(kind, 'something else')}, not a file")
    return file


def read_named(path: Path, most: int) -> bytes:
    """The content of a file that a user, or another file, has named; an OSError if it has more than `most` bytes."""
    with open_named(path) as file:
        size = os.fstat(file.fileno()).st_size
        content = file.read(most + 1) if size <= most else b""  # it may be growing
    if max(size, len(content)) > most:
        raise OSError(f"it has more than {most:,} bytes")
    return content


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that no reader sees it half written, even after a crash or with a full disk."""
    Folder(path.parent).write(path.name, content)


@dataclass(frozen=True)
class Folder:
    """The content of one folder. Names are relative to it, such as "clients/pen-0/3.safetensors"."""

    path: Path

    def exists(self, name: str) -> bool:
        """Whether anything has this name: a file, a folder, a link or something else."""
        try:
            with self._place(name) as (folder, last):
                return _status(folder, last) is not None
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise cannot_read(self.path / name, error) from error

    def ensure_file(self, name: str) -> None:
        """Refuse anything of this name that is not a regular file inside this folder."""
        try:
            with suppress(FileNotFoundError), self._place(name) as (folder, last):
                self._ensure_own(folder, last, name)
        except OSError as error:
            raise cannot_read(self.path / name, error) from error

    def names(self, name: str = ".") -> list[str]:
        """The names in a folder, sorted; empty if the folder does not exist."""
        try:
            with self._place(f"{name}/.") as (folder, _):
                return sorted(os.listdir(folder))  # noqa: PTH208  (of a handle)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise cannot_read(self.path / name, error) from error

    def leftovers(self, name: str = ".") -> list[str]:
        """Temporary files that killed writers have left in a folder."""
        return [f"{name}/{found}" for found in self.names(name) if _LEFTOVER.fullmatch(found)]

    def folders(self, name: str) -> list[str]:
        """Everything in a folder that is not a regular file: its folders, and links or pipes in place of one."""
        found = []
        with suppress(FileNotFoundError), self._place(f"{name}/.") as (folder, _):
            for inner in sorted(os.listdir(folder)):  # noqa: PTH208  (of a handle)
                status = _status(folder, inner)
                if status is not None and not stat.S_ISREG(status.st_mode):
                    found.append(f"{name}/{inner}")
        return found

    @contextmanager
    def reading(self, name: str) -> Iterator[BinaryIO]:
        """Open a file to read it."""
        try:
            with self._place(name) as (folder, last):
                file = os.fdopen(self._open(folder, last, name, os.O_RDONLY), "rb")
        except OSError as error:
            raise cannot_read(self.path / name, error) from error
        with file:
            yield file

    @contextmanager
    def path_for_reading(self, name: str) -> Iterator[str]:
        """A path for libraries that open files themselves; it leads to exactly the file that was checked here."""
        with self.reading(name) as file:
            yield f"/dev/fd/{file.fileno()}"

    def read(self, name: str, most: int = MOST_TEXT) -> bytes:
        """The content of a file; refused if it has more than `most` bytes."""
        with self.reading(name) as file:
            self._ensure_small(name, os.fstat(file.fileno()).st_size, most)
            content = file.read(most + 1)  # it may be growing
        self._ensure_small(name, len(content), most)
        return content

    def lines(self, name: str) -> Iterator[bytes]:
        """The complete lines of a file; a last line without its end is skipped."""
        with self.reading(name) as file:
            self._ensure_small(name, os.fstat(file.fileno()).st_size, MOST_TEXT)
            total = 0
            while line := file.readline(MOST_LINE + 1):
                total += len(line)
                self._ensure_small(name, total, MOST_TEXT)
                if not line.endswith(b"\n"):
                    self._ensure_small(name, len(line), MOST_LINE, "a line")
                    return
                yield line[:-1]

    def write(self, name: str, content: bytes) -> None:
        """Write a file so that no reader sees it half written; parent folders are created."""
        self.place(self.prepare(name, content), name)

    def prepare(self, name: str, content: bytes) -> str:
        """Write the content to a temporary file next to `name` and sync it to disk; returns the temporary name.

        If writing fails, the temporary file is removed.
        """
        path = PurePosixPath(name)
        temporary = f".{path.name}.{secrets.token_hex(4)}.tmp"
        try:
            with self._place(name, make=True) as (folder, last):
                self._ensure_own(folder, last, name)
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _OWN
                handle = os.open(temporary, flags, 0o600, dir_fd=folder)
                try:
                    with os.fdopen(handle, "wb") as file:
                        file.write(content)
                        file.flush()
                        os.fsync(file.fileno())
                except BaseException:
                    os.unlink(temporary, dir_fd=folder)
                    raise
        except OSError as error:
            raise cannot_write(self.path / name, error) from error
        return str(path.with_name(temporary))

    def place(self, temporary: str, name: str) -> None:
        """Rename a prepared file to its final name; replaces an existing file."""
        try:
            self.move(temporary, name)
        except BaseException:
            self.remove(temporary)
            raise

    def move(self, name: str, other: str) -> None:
        """Rename a file within its folder; replaces an existing file and survives a power cut."""
        try:
            with self._place(other) as (folder, last):
                self._ensure_own(folder, last, other)
                os.replace(PurePosixPath(name).name, last, src_dir_fd=folder, dst_dir_fd=folder)
                os.fsync(folder)
        except OSError as error:
            raise cannot_write(self.path / other, error) from error

    def append(self, name: str, line: str) -> None:
        """Add a line to a file and sync it to disk. A crash may cut the line off: readers skip an incomplete line."""
        try:
            with self._place(name) as (folder, last):
                handle = self._open(folder, last, name, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
                with os.fdopen(handle, "ab") as file:
                    self._ensure_only_name(name, os.fstat(file.fileno()))
                    file.write(f"{line}\n".encode())
                    file.flush()
                    os.fsync(file.fileno())
        except OSError as error:
            raise cannot_write(self.path / name, error) from error

    def open_lock(self, name: str, *, make: bool) -> BinaryIO | None:
        """Open a file to lock it, without changing it; None if it does not exist and `make` is false."""
        try:
            with self._place(name) as (folder, last):
                flags = os.O_RDWR | os.O_CREAT if make else os.O_RDONLY
                return os.fdopen(self._open(folder, last, name, flags), "r+b" if make else "rb", 0)
        except FileNotFoundError as error:
            if not make:
                return None
            raise cannot_write(self.path / name, error) from error
        except OSError as error:
            raise cannot_write(self.path / name, error) from error

    def remove(self, name: str) -> None:
        """Remove a file, or a link itself; does nothing if it does not exist."""
        try:
            with suppress(FileNotFoundError), self._place(name) as (folder, last):
                os.unlink(last, dir_fd=folder)
        except OSError as error:
            raise cannot_write(self.path / name, error) from error

    def remove_folder(self, name: str) -> None:
        """Remove a folder with all its content, or a link itself; does nothing if it does not exist."""
        try:
            with suppress(FileNotFoundError), self._place(name) as (folder, last):
                status = _status(folder, last)
                if status is not None and stat.S_ISDIR(status.st_mode):
                    shutil.rmtree(last, dir_fd=folder)  # follows no link either
                elif status is not None:
                    os.unlink(last, dir_fd=folder)
        except OSError as error:
            raise cannot_write(self.path / name, error) from error

    @contextmanager
    def _place(self, name: str, *, make: bool = False) -> Iterator[tuple[int, str]]:
        """A handle of the folder that contains `name`, and the last part of the name."""
        *before, last = [*PurePosixPath(name).parts, *(["."] if name.endswith("/.") else [])]
        handle = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for depth, part in enumerate(before, start=1):
                inner = self._enter(handle, part, self.path.joinpath(*before[:depth]), make)
                os.close(handle)
                handle = inner
            yield handle, last
        finally:
            os.close(handle)

    @staticmethod
    def _enter(handle: int, part: str, path: Path, make: bool) -> int:
        if make:
            with suppress(FileExistsError):
                os.mkdir(part, dir_fd=handle)
        status = _status(handle, part)
        if status is not None and not stat.S_ISDIR(status.st_mode):
            raise _foreign(path, status, "a folder")
        return os.open(part, os.O_RDONLY | os.O_DIRECTORY | _OWN, dir_fd=handle)

    def _open(self, folder: int, last: str, name: str, flags: int) -> int:
        """Open a regular file. The file type is checked before opening, and again on the open handle."""
        self._ensure_own(folder, last, name)
        handle = os.open(last, flags | _OWN, 0o666, dir_fd=folder)
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            os.close(handle)
            raise _foreign(self.path / name, status, "a file")
        return handle

    def _ensure_own(self, folder: int, last: str, name: str) -> None:
        status = _status(folder, last)
        if status is not None and not stat.S_ISREG(status.st_mode):
            raise _foreign(self.path / name, status, "a file")

    def _ensure_only_name(self, name: str, status: os.stat_result) -> None:
        if status.st_nlink > 1:
            raise StorageError(
                f"got {self.path / name}, which has {status.st_nlink} names (hard links), so a line added here would "
                "also appear elsewhere; expected a file with one name. Replace it with a copy."
            )

    def _ensure_small(self, name: str, size: int, most: int, what: str = "text") -> None:
        if size > most:
            raise StorageError(
                f"got {self.path / name} with {what} of {size:,} bytes or more; expected at most {most:,}. It was not "
                "written by fedrbn: restore a copy, or train again with --force."
            )


def cannot_read(path: Path, error: OSError) -> StorageError:
    """The error for a file that cannot be opened."""
    return StorageError(
        f"got {path}, which cannot be read ({error.strerror or error}); expected a readable file. Check its name and "
        "permissions, or restore a copy."
    )


def cannot_write(path: Path, error: OSError) -> StorageError:
    """The error for a file that cannot be written: the disk is full, or the directory is read-only."""
    return StorageError(
        f"got {path}, which cannot be written ({error.strerror or error}); expected a writable directory with "
        "free space. Existing files are intact: free some space or change the permissions, then continue with "
        "--resume, or choose another --out."
    )


def _status(folder: int, name: str) -> os.stat_result | None:
    """The status of this name, without following a link; None if it does not exist."""
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _foreign(path: Path, status: os.stat_result, expected: str) -> StorageError:
    kind = _KINDS.get(stat.S_IFMT(status.st_mode), "something else")
    return StorageError(
        f"got {path}, which is {kind}; expected {expected} inside the directory. It may point elsewhere, so it was "
        "not opened: remove it, or restore the original."
    )
