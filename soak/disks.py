"""Disks that are full or read-only, checkpoints that are truncated, changed, or of another run."""

from __future__ import annotations

import json
import os
import resource
import shutil
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import safetensors.torch
import torch

from fedrbn import config, nets
from fedrbn.errors import StorageError
from fedrbn.evaluation.records import RoundRecord
from fedrbn.runs import train as runs
from fedrbn.runs.directory import RunDirectory
from fedrbn.runs.recovery import recover
from soak.kills import Data, finish, reference, train
from soak.setting import SETTINGS, LostError, Row, ensure_same, experiment, fingerprint, fork, wait

Harm = Callable[[Path, np.random.Generator], None]


def rows(folder: Path, data: Data, tries: int, random: np.random.Generator) -> list[Row]:
    """Every fault of a disk, tried `tries` times."""
    expected, _ = reference(folder, data)
    wait(fork(partial(_stopping, folder / "half", data), folder / "log"))
    found = []
    for name, (harm, happened) in HARMS.items():
        for number in range(tries):
            path = folder / f"{name.replace(' ', '-')}-{number}"
            shutil.copytree(folder / "half", path)
            harm(path, random)
            finish(path, data, folder)
            ensure_same(path, expected, name)
        found.append(Row(name, tries, f"{happened}; ended with the same bytes"))
    found.append(_full(folder, data, tries, expected, random))
    found.append(_read_only(tries))
    found += _foreign(folder, data, tries)
    found.append(_planted(folder, tries, random))
    found.append(_edited(folder, tries, random))
    found.append(_forgotten(folder, data, tries))
    return found


class _Stop:
    """A watcher that ends the run after its second round."""

    def training(self, *_: object) -> None: ...

    def answered(self, *_: object) -> None: ...

    def evaluating(self, *_: object) -> None: ...

    def round_finished(self, record: RoundRecord) -> None:
        if record.round == 2:
            raise KeyboardInterrupt


def _stopping(path: Path, data: Data) -> None:
    runs.run(experiment(), path, data=data, watcher=_Stop())


def _change_bit(path: Path, random: np.random.Generator) -> None:
    content = bytearray((path / "last.safetensors").read_bytes())
    content[int(random.integers(len(content)))] ^= 1 << int(random.integers(8))
    (path / "last.safetensors").write_bytes(content)


def _cut(path: Path, random: np.random.Generator) -> None:
    content = (path / "last.safetensors").read_bytes()
    (path / "last.safetensors").write_bytes(content[: int(random.integers(len(content)))])


def _cut_lines(path: Path, random: np.random.Generator) -> None:
    """As after a crash: the truncated line of a third round."""
    lines = (path / "rounds.jsonl").read_bytes().splitlines(keepends=True)
    with (path / "rounds.jsonl").open("ab") as file:
        file.write(lines[-1][: int(random.integers(1, len(lines[-1])))])


HARMS: dict[str, tuple[Harm, str]] = {
    "a bit of the last checkpoint changed": (_change_bit, "detected; resumed from the previous one"),
    "the last checkpoint cut off": (_cut, "detected; resumed from the previous one"),
    "the last checkpoint removed": (
        lambda path, _: (path / "last.safetensors").unlink(),
        "resumed from the previous one",
    ),
    "a truncated line in the records": (_cut_lines, "dropped"),
}


def _full(folder: Path, data: Data, tries: int, expected: dict[str, str], random: np.random.Generator) -> Row:
    """No file may grow beyond a random size: the first that would ends the run with an error, like a full disk."""
    largest = (folder / "whole" / "last.safetensors").stat().st_size
    stopped = 0
    for number in range(tries):
        path = folder / f"full-{number}"
        limit = int(random.integers(largest))
        stopped += wait(fork(partial(_limited, path, data, limit), folder / "log")) == 1
        finish(path, data, folder)
        ensure_same(path, expected, "a full disk")
    if stopped < tries:
        raise LostError(f"got {tries - stopped} runs that did not notice the full disk; expected none.")
    return Row("disk full while training", tries, "stopped with an error; with room again, ended with the same bytes")


def _limited(path: Path, data: Data, limit: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    train(path, data)


def _read_only(tries: int) -> Row:
    for _ in range(tries):
        try:
            runs.run(experiment(), Path("/proc/self/run"))
        except StorageError:
            continue
        raise LostError("got a run in a directory that cannot be written; expected it to be refused.")
    return Row("a run directory that cannot be written", tries, "refused before training; the message says what to do")


def _foreign(folder: Path, data: Data, tries: int) -> list[Row]:
    """A checkpoint of another network, and one of an unknown version."""
    newer = safetensors.torch.save({"w": torch.ones(1)}, metadata={"fedrbn": json.dumps({"format": "fedrbn-state/9"})})
    wider = nets.build("digits", 10, 1 / 8, (3, 28, 28), seed=1)
    for number in range(tries):
        path = folder / f"foreign-{number}"
        shutil.copytree(folder / "half", path)
        _refused(partial(runs.resume, path, data=data, network=wider))
        (path / "last.safetensors").write_bytes(newer)
        _refused(partial(recover, RunDirectory.open(path)))
    return [
        Row("a checkpoint of another network", tries, "refused; the message names the layer and both shapes"),
        Row(
            "a checkpoint of an unknown version",
            tries,
            "refused; the message names both formats; the file is unchanged",
        ),
    ]


FILES = (
    ".lock", "config.toml", "federation.json", "rounds.jsonl", "evaluations.jsonl", "stops.jsonl", "last.safetensors",
    "last.previous.safetensors", "best.safetensors", "best.previous.safetensors", "answers", "clients",
)  # fmt: skip
"""Everything that a run directory can contain."""


def _planted(folder: Path, tries: int, random: np.random.Generator) -> Row:
    """A link, a linked folder, a pipe or a socket in place of a run's file: rejected, and its target is not changed."""
    outside = folder / "outside"
    outside.mkdir()
    (outside / ".precious.tmp").write_text("dear")
    plants: list[Callable[[Path], object]] = [
        lambda path: path.symlink_to(outside / ".precious.tmp"),
        lambda path: path.symlink_to(outside),
        lambda path: path.symlink_to(outside / "new"),
        os.mkfifo,
    ]
    for number in range(tries):
        for name in FILES:
            path = folder / f"planted-{number}-{name}"
            shutil.copytree(folder / "half", path)
            shutil.rmtree(path / name, ignore_errors=True)
            (path / name).unlink(missing_ok=True)
            plants[int(random.integers(len(plants)))](path / name)
            _refused(partial(runs.resume, path))
            if [(file.name, file.read_text()) for file in outside.iterdir()] != [(".precious.tmp", "dear")]:
                raise LostError(f"got a change outside {path} through {name}; expected none.")
    return Row("a link or a pipe in place of a file or folder of the run", tries * len(FILES), "rejected by name")


def _edited(folder: Path, tries: int, random: np.random.Generator) -> Row:
    """A setting changed in config.toml while the run was interrupted."""
    changes = {"train": {"lr": 0.06, "rounds": 4}, "run": {"seed": 2}, "attack": {"eps": 0.01}}
    settings = [(section, key, value) for section, keys in changes.items() for key, value in keys.items()]
    for number in range(tries):
        path = folder / f"edited-{number}"
        shutil.copytree(folder / "half", path)
        values = RunDirectory.open(path).experiment().model_dump(mode="json", exclude_none=True)
        changed = config.with_settings(values, [settings[int(random.integers(len(settings)))]])
        (path / "config.toml").write_text(config.from_values(changed).to_toml())
        _refused(partial(runs.resume, path))
    return Row("a setting changed during a run", tries, "rejected; the error names the setting and both values")


def _forgotten(folder: Path, data: Data, tries: int) -> Row:
    """The memory of Free AT clients is removed; after it is restored, the run ends as if undisturbed."""
    free = config.make(config.with_settings(SETTINGS, [("method", "name", "fatavg-free"), ("method", "replays", 1)]))
    wait(fork(partial(runs.run, free, folder / "free", data=data), folder / "log"))
    wait(fork(partial(runs.run, free, folder / "free-half", data=data, watcher=_Stop()), folder / "log"))
    for number in range(tries):
        path = folder / f"forgotten-{number}"
        shutil.copytree(folder / "free-half", path)
        shutil.rmtree(path / "clients")
        _refused(partial(runs.resume, path, data=data))
        shutil.copytree(folder / "free-half" / "clients", path / "clients")
        finish(path, data, folder)
        ensure_same(path, fingerprint(folder / "free"), "a lost memory that was restored")
    return Row(
        "the clients' memory is lost", tries, "rejected, with the client's name; restored: ended with the same bytes"
    )


def _refused(use: Callable[[], object]) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            use()
    except StorageError as error:
        if "expected" not in str(error):
            raise
        return
    raise LostError("got an invalid file that was used; expected it to be rejected.")
