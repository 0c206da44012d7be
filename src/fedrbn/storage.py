"""A run on disk: the resolved config, one JSON line per round and evaluation, checkpoints as safetensors.

    config.toml         everything that decides the run
    rounds.jsonl        one line per finished round
    evaluations.jsonl   one line per evaluation, with ε, attack, branch, seed and versions
    federation.json     the clients, classes and image size, to rebuild networks without the data
    last.safetensors    the server's state after the last finished round
    best.safetensors    the state that validation chose
    clients/            what each client remembers from round to round, for methods that need it

A file is either whole or absent: writes go to a temporary file that is renamed into place. Nothing is ever unpickled.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from fedrbn import config
from fedrbn.config import ConfigError, Experiment
from fedrbn.types import Member, Role, ServerState

FORMAT = "fedrbn-state/1"


class StorageError(RuntimeError):
    """A run directory or checkpoint that cannot be used; the message says what was found and what helps."""


@dataclass(frozen=True)
class Best:
    """The round that validation chose, and its score."""

    round: int
    score: float


@dataclass(frozen=True)
class Checkpoint:
    """A state of the server, and the best round so far."""

    state: ServerState
    best: Best | None


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
                    "last.safetensors",
                    "best.safetensors",
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
            raise StorageError(
                f"got run directory {path}, which cannot be written ({error}); expected one that can. "
                "Choose another --out."
            ) from error
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
        except (ConfigError, UnicodeDecodeError) as error:
            raise StorageError(f"got {self._file('config.toml')}, which is not a valid config: {error}") from error

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the directory for one process; a second one is refused at once."""
        with self._file(".lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise StorageError(
                    f"got run directory {self.path}, which another process is writing; expected it to be free. "
                    "Wait for that run or choose another --out."
                ) from None
            yield

    def save(self, name: str, state: ServerState, best: Best | None) -> None:
        """Write a checkpoint, whole or not at all."""
        facts = {
            "format": FORMAT,
            "round": state.round,
            "reported": state.reported,
            "best": None if best is None else [best.round, best.score],
        }
        content = safetensors.torch.save(_flat(state), metadata={"fedrbn": json.dumps(facts)})
        write_atomically(self._file(f"{name}.safetensors"), content)

    def checkpoint(self, name: str) -> Checkpoint | None:
        """Read a checkpoint; None if there is none yet."""
        path = self._file(f"{name}.safetensors")
        if not path.exists():
            return None
        try:
            with safetensors.safe_open(path, framework="pt") as file:
                facts = json.loads((file.metadata() or {})["fedrbn"])
                tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118  (not a mapping)
            if facts["format"] != FORMAT:
                raise ValueError(f"format {facts['format']}")
            best = None if facts["best"] is None else Best(int(facts["best"][0]), float(facts["best"][1]))
            reported = {str(client): int(number) for client, number in facts["reported"].items()}
            return Checkpoint(_nested(tensors, int(facts["round"]), reported), best)
        except (safetensors.SafetensorError, ValueError, KeyError, TypeError, AttributeError, OSError) as error:
            raise StorageError(
                f"got checkpoint {path}, which cannot be read ({error}); expected {FORMAT}. It is damaged or from "
                "another version: remove it to start again from the other checkpoint or from the beginning."
            ) from error

    def append(self, name: str, record: Mapping[str, Any]) -> None:
        """Add one JSON line and make sure it is on disk."""
        with self._file(name).open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def records(self, name: str) -> list[dict[str, Any]]:
        """All whole JSON lines; a last line that was cut off is left out."""
        path = self._file(name)
        lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
        try:
            return [json.loads(line) for line in lines]
        except ValueError as error:
            raise StorageError(
                f"got {path} with a line that is not JSON ({error}); expected one object a line."
            ) from None

    def recover(self) -> None:
        """Clean up after a crash: drop half-written files and the lines of rounds that are not in the checkpoint."""
        for leftover in (path for place in ("", "answers/", "clients/*/") for path in self.path.glob(f"{place}.*.tmp")):
            leftover.unlink()
        last = self.checkpoint("last")
        finished = last.state.round if last else 0
        rounds = [record for record in self.records("rounds.jsonl") if record["round"] <= finished]
        for name, kept in (("rounds.jsonl", rounds), ("evaluations.jsonl", self.records("evaluations.jsonl"))):
            write_atomically(self._file(name), "".join(json.dumps(record) + "\n" for record in kept).encode())

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
            return members, tuple(str(name) for name in content["classes"]), (channels, height, width)
        except (OSError, ValueError, KeyError, TypeError) as error:
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

    def answers(self) -> dict[str, dict[str, Tensor]]:
        """The per-sample answers of the newest evaluation: client → column → one boolean per sample."""
        number = len(self.records("evaluations.jsonl")) - 1
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


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that it is never seen half written, even after a crash."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _flat(state: ServerState) -> dict[str, Tensor]:
    flat = {f"shared/{name}": tensor for name, tensor in state.shared.items()}
    for client, tensors in state.personal.items():
        flat |= {f"personal/{client}/{name}": tensor for name, tensor in tensors.items()}
    return {name: tensor.contiguous() for name, tensor in flat.items()}


def _nested(flat: Mapping[str, Tensor], number: int, reported: dict[str, int]) -> ServerState:
    shared: dict[str, Tensor] = {}
    personal: dict[str, dict[str, Tensor]] = {}
    for key, tensor in flat.items():
        kind, _, rest = key.partition("/")
        if kind == "shared":
            shared[rest] = tensor
        elif kind == "personal":
            client, _, name = rest.rpartition("/")
            personal.setdefault(client, {})[name] = tensor
        else:
            raise ValueError(f"unknown tensor {key!r}")
    return ServerState(number, shared, personal, reported)
