"""A run on disk: the resolved config, one JSON line per round and evaluation, checkpoints as safetensors.

    config.toml         everything that decides the run
    rounds.jsonl        one line per finished round
    rounds.csv          the same as a table, generated from these lines
    evaluations.jsonl   one line per evaluation, with ε, attack, branch, seed and versions
    federation.json     the clients, classes and image size, to rebuild networks without the data
    last.safetensors    the server's state after the last finished round
    best.safetensors    the state that validation chose
    *.previous.safetensors   the checkpoints before these, as a fallback
    stops.jsonl         one line for each time that the run stopped because too few clients answered
    attempts.jsonl      one line for each time that clients were asked for a round, in runs with new noise each time
    clients/            what each client remembers from round to round, for methods that need it

A file is either complete or absent: writes go to a temporary file that is then renamed. Checkpoints contain a digest,
their settings, and which clients remembered what; a run continues from the newest intact one. Nothing is ever
unpickled, and no link in the directory is followed (`fedrbn.files`).
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from fedrbn import config
from fedrbn.config import Experiment
from fedrbn.config.text import shortened
from fedrbn.errors import ConfigError, StorageError
from fedrbn.federated.protocol import MOST_SAMPLES, ServerState
from fedrbn.federated.training.memory import remembered
from fedrbn.files import MOST_SETTINGS, Folder, cannot_write
from fedrbn.runs.checkpoint import Best, Checkpoint, current, encode, previous
from fedrbn.runs.checkpoint import read as read_checkpoint
from fedrbn.types import Duty, Member, Role

_MOST_SIDE = 4096
"""In pixels; a damaged description must not request a network that is too large for memory."""
_MOST_SHOWN = 3
"""Maximum number of settings that an error names."""
_LOCK = ".lock"
CHECKPOINTS = (current("last"), previous("last"), current("best"), previous("best"))
FILES = (
    "federation.json",
    "rounds.jsonl",
    "evaluations.jsonl",
    "stops.jsonl",
    "attempts.jsonl",
    "rounds.csv",
    *CHECKPOINTS,
)
"""The files of a run besides its lock, its config and its folders."""


class RunDirectory:
    """The files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.folder = Folder(path)
        self._experiment: Experiment | None = None

    @classmethod
    @contextmanager
    def creating(cls, path: Path, experiment: Experiment, *, force: bool = False) -> Iterator[RunDirectory]:
        """A new run directory, locked until this block ends. A directory that already holds a run is refused, unless
        `force` removes that run first. If several processes create the same directory, one of them succeeds."""
        run = cls(path)
        run._ensure_free(force)  # before anything is written, even a lock
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise cannot_write(path, error) from error
        with run.locked():  # refuses to remove a run that another process is still training
            run._ensure_free(force)
            run._clear()
            run.folder.write("config.toml", experiment.to_toml().encode())
            run._experiment = experiment
            yield run

    @classmethod
    def create(cls, path: Path, experiment: Experiment, *, force: bool = False) -> RunDirectory:
        """Like `creating`, for a run that is trained later."""
        with cls.creating(path, experiment, force=force) as run:
            return run

    def _ensure_free(self, force: bool) -> None:
        if self.folder.exists("config.toml"):
            if not force:
                raise StorageError(
                    f"got run directory {self.path}, which already holds a run; expected a new one. Continue it with "
                    f"--resume {self.path}, replace it with --force, or choose another --out."
                )
        elif self._holds_something_else():
            raise StorageError(
                f"got {self.path}, which is not empty and not a run; expected a new or empty directory. Choose another."
            )

    def _holds_something_else(self) -> bool:
        """Whether there is anything besides the first files of a run, which another process may have just created."""
        if self.path.exists() and not self.path.is_dir():  # in this order: the directory may appear in between
            return True
        newborn = (_LOCK, "config.toml", ".config.toml.*.tmp")
        return self.path.is_dir() and any(
            not any(fnmatch(name, pattern) for pattern in newborn) for name in self.folder.names()
        )

    def _clear(self) -> None:
        """Remove the files of a run and nothing else; of a link, only the link itself."""
        for name in FILES:
            self.folder.remove(name)
        for name in ("answers", "clients"):
            self.folder.remove_folder(name)

    def remove_evaluations(self) -> None:
        """Remove the evaluations, so that the run counts as not evaluated yet."""
        self.folder.remove("evaluations.jsonl")
        self.folder.remove_folder("answers")

    def change_settings(self, experiment: Experiment) -> None:
        """Change the experiment of the run. The caller must have updated the checkpoints."""
        self.folder.write("config.toml", experiment.to_toml().encode())
        self._experiment = experiment

    @classmethod
    def open(cls, path: Path) -> RunDirectory:
        """An existing run directory."""
        run = cls(path)
        if not path.is_dir():
            what = "is not a folder" if path.exists() else "does not exist"
            raise StorageError(f"got {path}, which {what}; expected a run directory made by fedrbn run.")
        if not run.folder.exists("config.toml"):
            raise StorageError(f"got {path}, which holds no run (no config.toml); expected one made by fedrbn run.")
        return run

    def experiment(self) -> Experiment:
        """The run's resolved config, as it was when it was first read."""
        if self._experiment is None:
            try:
                text = self.folder.read("config.toml", MOST_SETTINGS).decode("utf-8")
                self._experiment = config.from_toml(text)
            except (ConfigError, UnicodeDecodeError) as error:
                raise StorageError(
                    f"got {self._file('config.toml')}, which is not a valid config ({error}); expected the one that "
                    "fedrbn run wrote. Restore a copy."
                ) from error
        return self._experiment

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the directory for this process; a second process is refused immediately."""
        lock = self.folder.open_lock(_LOCK, make=True)
        assert lock is not None  # noqa: S101  (it was made)
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise StorageError(
                    f"got run directory {self.path}, which another process is using; expected an unused one. "
                    "Wait for that run or choose another --out."
                ) from None
            yield

    def held(self) -> bool:
        """Whether a process holds the lock, so that a run in the directory is active."""
        lock = self.folder.open_lock(_LOCK, make=False)
        if lock is None:
            return False
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    def save(self, name: str, state: ServerState, best: Best | None) -> None:
        """Write a checkpoint atomically; the existing one is kept as the previous one."""
        experiment = self.experiment() if self.folder.exists("config.toml") else None
        checkpoint = Checkpoint(state, best, experiment, remembered(self.clients, state.round))
        prepared = self.folder.prepare(current(name), encode(checkpoint))
        if self.folder.exists(current(name)):
            self.folder.move(current(name), previous(name))
        self.folder.place(prepared, current(name))

    def checkpoint(self, name: str) -> Checkpoint | None:
        """Read a checkpoint of this run's experiment; None if there is none yet."""
        return self.read_checkpoint(current(name)) if self.folder.exists(current(name)) else None

    def read_checkpoint(self, name: str) -> Checkpoint:
        """Read a checkpoint of this run's experiment; one of another experiment is refused."""
        found = read_checkpoint(self.folder, name)
        if found.experiment is not None:
            self.ensure_same(found.experiment, name)
        return found

    def ensure_same(self, written: Experiment, name: str) -> None:
        """Refuse a checkpoint that was written with other settings than those in config.toml."""
        changed = self.experiment().differences(written)
        if changed:
            shown = [f"{key} = {_shown(here)} (in the checkpoint {_shown(there)})" for key, here, there in changed]
            if [key for key, _, _ in changed] == ["train.rounds"]:
                remedy = f"If it was being extended, repeat fedrbn run --resume {self.path} --rounds N. Otherwise "
            else:
                remedy = "The settings of a run cannot change: "
            more = f" and {len(changed) - _MOST_SHOWN} more" if len(changed) > _MOST_SHOWN else ""
            raise StorageError(
                f"got {self._file('config.toml')} with {', '.join(shown[:_MOST_SHOWN])}{more}; expected the experiment "
                f"of {self._file(name)} (key {written.key()}, not {self.experiment().key()}). {remedy}"
                "restore the file that was changed, or start another run with the new settings and another --out."
            )

    def append(self, name: str, record: Mapping[str, Any]) -> None:
        """Add one JSON line and sync it to disk."""
        self.folder.append(name, json.dumps(record))

    def records(self, name: str) -> list[dict[str, Any]]:
        """All complete JSON lines; a truncated last line is skipped."""
        try:
            found = [json.loads(line) for line in self.folder.lines(name)] if self.folder.exists(name) else []
            if not all(isinstance(record, dict) for record in found):
                raise ValueError("not an object")
            return found
        except (ValueError, RecursionError) as error:
            raise StorageError(
                f"got {self._file(name)} with a line that is not JSON ({error}); expected one object per line. The "
                "file is damaged: restore a copy, or train again with --force."
            ) from None

    def rewrite(self, name: str, records: Iterable[Mapping[str, Any]]) -> None:
        """Replace all JSON lines of a file."""
        self.folder.write(name, "".join(json.dumps(record) + "\n" for record in records).encode())

    def describe(self, members: Sequence[Member], classes: Sequence[str], image_shape: Sequence[int]) -> None:
        """Write who takes part, so that the networks can be rebuilt without the data."""
        content = {
            "members": [_described(member) for member in members],
            "classes": list(classes),
            "image_shape": list(image_shape),
        }
        self.folder.write("federation.json", json.dumps(content, indent=1).encode())

    def description(self) -> tuple[tuple[Member, ...], tuple[str, ...], tuple[int, int, int]]:
        """What `describe` wrote: members, classes, image shape."""
        path = self._file("federation.json")
        try:
            if not self.folder.exists("federation.json"):
                raise ValueError("it does not exist")
            content = json.loads(self.folder.read("federation.json"))
            members = tuple(
                Member(str(m["id"]), str(m["domain"]), _duty(m), int(m["samples"])) for m in content["members"]
            )
            if not all(0 <= member.samples <= MOST_SAMPLES for member in members):
                raise ValueError(f"a client with {shortened(max(m.samples for m in members))} samples")
            channels, height, width = (int(side) for side in content["image_shape"])
            if not all(1 <= side <= _MOST_SIDE for side in (channels, height, width)):
                raise ValueError(f"image_shape {content['image_shape']}")
            return members, tuple(str(name) for name in content["classes"]), (channels, height, width)
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise StorageError(
                f"got {path}, which cannot be read ({error!r}); expected the description of a federation. "
                "Continue the run with --resume, which writes it again."
            ) from error

    def save_tensors(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        """Write named tensors next to the checkpoints, for example per-sample outcomes."""
        self.folder.write(name, safetensors.torch.save({key: value.clone() for key, value in tensors.items()}))

    def load_tensors(self, name: str) -> dict[str, Tensor]:
        """Read what `save_tensors` wrote."""
        try:
            with self.folder.path_for_reading(name) as readable:
                return safetensors.torch.load_file(readable)
        except safetensors.SafetensorError as error:
            raise StorageError(
                f"got {self._file(name)}, which cannot be read ({error}); expected safetensors. Evaluate the run again."
            ) from None

    def answers(self, number: int | None = None) -> dict[str, dict[str, Tensor]]:
        """The per-sample answers of an evaluation (default: the newest): client → column → one boolean per sample.

        Evaluation 0 is the one at the end of training.
        """
        number = len(self.records("evaluations.jsonl")) - 1 if number is None else number
        found: dict[str, dict[str, Tensor]] = {}
        for key, value in self.load_tensors(f"answers/{number}.safetensors").items():
            client, _, column = key.partition("/")
            found.setdefault(client, {})[column] = value
        return found

    @property
    def clients(self) -> Path:
        """The folder for what clients remember from round to round."""
        return self._file("clients")

    def _file(self, name: str) -> Path:
        return self.path / name


def _described(member: Member) -> dict[str, Any]:
    """A member as JSON: the role alone means the paper's duty of that role; any other duty is written out."""
    own = {"id": member.id, "domain": member.domain, "role": member.role.value, "samples": member.samples}
    return own if member.duty == member.role.duty else own | {"duty": asdict(member.duty)}


def _duty(written: Mapping[str, Any]) -> Duty:
    """The duty that `_described` wrote."""
    role, own = Role(written["role"]), written.get("duty")
    return role.duty if own is None else Duty(**own)


def _shown(value: object) -> str:
    return "not set" if value is None else json.dumps(value)
