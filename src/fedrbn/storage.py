"""A run on disk: the resolved config, one JSON line per round and evaluation, checkpoints as safetensors.

    config.toml         everything that decides the run
    rounds.jsonl        one line per finished round
    evaluations.jsonl   one line per evaluation, with ε, attack, branch, seed and versions
    federation.json     the clients, classes and image size, to rebuild networks without the data
    last.safetensors    the server's state after the last finished round
    best.safetensors    the state that validation chose
    *.previous.safetensors   the ones before these, to fall back to
    stops.jsonl         one line per time that too few clients answered and the run stopped
    clients/            what each client remembers from round to round, for methods that need it

A file is either whole or absent: writes go to a temporary file that is renamed into place. Checkpoints carry a digest;
a run goes on from the newest one that is whole. Nothing is ever unpickled.
"""

from __future__ import annotations

import fcntl
import json
import shutil
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from fedrbn import checkpoints, config
from fedrbn.checkpoints import Best, Checkpoint, DamagedError
from fedrbn.config import ConfigError, Experiment
from fedrbn.files import StorageError, append_line, cannot_write, place_file, prepare_file, write_atomically
from fedrbn.types import Member, Role, ServerState

__all__ = ["RunDirectory", "StorageError", "StorageWarning", "write_atomically"]


_MOST_SIDE = 4096
"""Pixels; a damaged description must not ask for a network that fits into no memory."""


class StorageWarning(UserWarning):
    """Something in a run directory was damaged, and the run goes on from what is whole."""


class RunDirectory:
    """The files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: Path, experiment: Experiment, *, force: bool = False) -> RunDirectory:
        """A new run directory. One that holds a run already is refused, unless `force` removes that run first."""
        run = cls(path)
        if run._file("config.toml").exists():
            if not force:
                raise StorageError(
                    f"got run directory {path}, which holds a run already; expected a new one. "
                    f"Continue it with --resume {path}, replace it with --force, or choose another --out."
                )
            with run.locked():  # a run that another process is still writing is refused, not removed
                for name in (
                    "federation.json",
                    "rounds.jsonl",
                    "evaluations.jsonl",
                    "stops.jsonl",
                    *(f"{kind}{age}.safetensors" for kind in ("last", "best") for age in ("", ".previous")),
                ):
                    run._file(name).unlink(missing_ok=True)
                for name in ("answers", "clients"):
                    shutil.rmtree(run._file(name), ignore_errors=True)
        elif path.exists() and any(
            not item.match(".config.toml.*.tmp") for item in (path.iterdir() if path.is_dir() else [path])
        ):
            raise StorageError(
                f"got {path}, which is not empty and not a run; expected a new or empty directory. Choose another."
            )
        try:
            path.mkdir(parents=True, exist_ok=True)
            write_atomically(run._file("config.toml"), experiment.to_toml().encode())
        except OSError as error:
            raise cannot_write(path, error) from error
        return run

    @classmethod
    def open(cls, path: Path) -> RunDirectory:
        """An existing run directory."""
        run = cls(path)
        if not run._file("config.toml").is_file():
            raise StorageError(f"got {path}, which holds no run (no config.toml); expected one made by fedrbn run.")
        return run

    def experiment(self) -> Experiment:
        """The run's resolved config."""
        try:
            return config.from_toml(self._file("config.toml").read_text(encoding="utf-8"))
        except (ConfigError, UnicodeDecodeError, OSError) as error:
            raise StorageError(
                f"got {self._file('config.toml')}, which is not a valid config ({error}); expected the one that "
                "fedrbn run wrote. Put a copy back."
            ) from error

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the directory for one process; a second one is refused at once."""
        try:
            lock_file = self._file(".lock").open("w")
        except OSError as error:
            raise cannot_write(self._file(".lock"), error) from error
        with lock_file as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise StorageError(
                    f"got run directory {self.path}, which another process is writing; expected it to be free. "
                    "Wait for that run or choose another --out."
                ) from None
            yield

    def held(self) -> bool:
        """Whether a process holds the directory: then a run in it is alive."""
        try:
            with self._file(".lock").open() as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False

    def save(self, name: str, state: ServerState, best: Best | None) -> None:
        """Write a checkpoint, whole or not at all; the one that was there is kept as the previous one."""
        path = self._file(f"{name}.safetensors")
        try:
            prepared = prepare_file(path, checkpoints.encode(Checkpoint(state, best)))
            with suppress(FileNotFoundError):
                path.replace(self._previous(name))
            place_file(prepared, path)
        except OSError as error:
            raise cannot_write(path, error) from error

    def checkpoint(self, name: str) -> Checkpoint | None:
        """Read a checkpoint; None if there is none yet."""
        path = self._file(f"{name}.safetensors")
        return checkpoints.read(path) if path.exists() else None

    def append(self, name: str, record: Mapping[str, Any]) -> None:
        """Add one JSON line and make sure it is on disk."""
        append_line(self._file(name), json.dumps(record))

    def records(self, name: str) -> list[dict[str, Any]]:
        """All whole JSON lines; a last line that was cut off is left out."""
        path = self._file(name)
        try:
            lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
            found = [json.loads(line) for line in lines]
            if not all(isinstance(record, dict) for record in found):
                raise ValueError("something else than an object")
            return found
        except (ValueError, OSError, RecursionError) as error:
            raise StorageError(
                f"got {path} with a line that is not JSON ({error}); expected one object a line. The file is damaged: "
                "put a copy back, or train again with --force."
            ) from None

    def recover(self) -> None:
        """Make ready to train on: tidy up, go back to the newest whole checkpoint, drop the lines of later rounds."""
        self.tidy()
        last = self._settled()
        finished = last.state.round if last else 0
        rounds = [record for record in self.records("rounds.jsonl") if _number(record) <= finished]
        self._rewrite("rounds.jsonl", rounds)

    def tidy(self) -> None:
        """Drop what a crash left half written: files, and lines that were cut off."""
        for leftover in (path for place in ("", "answers/", "clients/*/") for path in self.path.glob(f"{place}.*.tmp")):
            leftover.unlink()
        for name in ("rounds.jsonl", "evaluations.jsonl"):
            self._rewrite(name, self.records(name))

    def _rewrite(self, name: str, records: Iterable[Mapping[str, Any]]) -> None:
        write_atomically(self._file(name), "".join(json.dumps(record) + "\n" for record in records).encode())

    def _settled(self) -> Checkpoint | None:
        """Put the newest checkpoint in place that is whole, and whose best state is whole too; None at the beginning.

        A run is the same from whichever round it goes on, so that an older checkpoint costs time and nothing else.
        """
        damage: list[StorageError] = []
        for path in (self._file("last.safetensors"), self._previous("last")):
            last = _read_whole(path, damage)
            if last is None:
                continue
            for chosen in (self._file("best.safetensors"), self._previous("best")):
                best = _read_whole(chosen, damage) if last.best else None
                if last.best is None or (best and best.state.round == last.best.round):
                    self._put_in_place("last", path)
                    self._put_in_place("best", chosen if best else None)
                    for error in damage:
                        note = f"{error} The run goes on from round {last.state.round}."
                        warnings.warn(note, StorageWarning, stacklevel=4)
                    return last
        if damage:
            raise damage[0]
        if any(path.exists() for path in (self._file("last.safetensors"), self._previous("last"))):
            raise StorageError(
                f"got run {self.path} without the best state that its last checkpoint speaks of; expected "
                "best.safetensors. Put a copy back, or remove last.safetensors and last.previous.safetensors: --resume "
                "then trains from the beginning, to the same result."
            )
        self._put_in_place("best", None)  # of a first round whose end was not reached
        return None

    def _put_in_place(self, name: str, path: Path | None) -> None:
        """Make this file the current checkpoint; what is not whole, or of a round that was not finished, goes."""
        current = self._file(f"{name}.safetensors")
        if path is None:
            current.unlink(missing_ok=True)
        elif path != current:
            path.replace(current)

    def describe(self, members: Sequence[Member], classes: Sequence[str], image_shape: Sequence[int]) -> None:
        """Write who takes part, so that the networks can be rebuilt where the data is not at hand."""
        content = {
            "members": [{**asdict(member), "role": member.role.value} for member in members],
            "classes": list(classes),
            "image_shape": list(image_shape),
        }
        write_atomically(self._file("federation.json"), json.dumps(content, indent=1).encode())

    def description(self) -> tuple[tuple[Member, ...], tuple[str, ...], tuple[int, int, int]]:
        """What `describe` wrote: members, classes, image shape."""
        path = self._file("federation.json")
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            members = tuple(
                Member(str(m["id"]), str(m["domain"]), Role(m["role"]), int(m["samples"])) for m in content["members"]
            )
            channels, height, width = (int(side) for side in content["image_shape"])
            if not all(1 <= side <= _MOST_SIDE for side in (channels, height, width)):
                raise ValueError(f"image_shape {content['image_shape']}")
            return members, tuple(str(name) for name in content["classes"]), (channels, height, width)
        except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise StorageError(
                f"got {path}, which cannot be read ({error!r}); expected the description of a federation. "
                "Continue the run with --resume, which writes it anew."
            ) from error

    def save_tensors(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        """Write named tensors beside the checkpoints, for example per-sample outcomes."""
        path = self._file(name)
        path.parent.mkdir(exist_ok=True)
        write_atomically(path, safetensors.torch.save({key: value.clone() for key, value in tensors.items()}))

    def load_tensors(self, name: str) -> dict[str, Tensor]:
        """Read what `save_tensors` wrote."""
        try:
            return safetensors.torch.load_file(self._file(name))
        except (safetensors.SafetensorError, OSError) as error:
            raise StorageError(
                f"got {self._file(name)}, which cannot be read ({error}); expected safetensors."
            ) from None

    def answers(self, number: int | None = None) -> dict[str, dict[str, Tensor]]:
        """The per-sample answers of an evaluation, or of the newest: client → column → one boolean per sample.

        Evaluation 0 is the one that ended the training.
        """
        number = len(self.records("evaluations.jsonl")) - 1 if number is None else number
        found: dict[str, dict[str, Tensor]] = {}
        for key, value in self.load_tensors(f"answers/{number}.safetensors").items():
            client, _, column = key.partition("/")
            found.setdefault(client, {})[column] = value
        return found

    @property
    def clients(self) -> Path:
        """Where clients keep what they remember from round to round."""
        return self._file("clients")

    def _file(self, name: str) -> Path:
        return self.path / name

    def _previous(self, name: str) -> Path:
        return self._file(f"{name}.previous.safetensors")


def _number(record: Mapping[str, Any]) -> int:
    number = record.get("round")
    if not isinstance(number, int):
        raise StorageError(
            f"got a line of rounds.jsonl with round = {number!r}; expected a whole number. The file is damaged: put a "
            "copy back, or train again with --force."
        )
    return number


def _read_whole(path: Path, damage: list[StorageError]) -> Checkpoint | None:
    """The checkpoint, if there is one and it is whole; what is wrong with it is added to `damage`."""
    try:
        return checkpoints.read(path) if path.exists() else None
    except DamagedError as error:
        damage.append(error)
        return None
