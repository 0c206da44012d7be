"""What a client keeps between rounds on its own disk: Free AT's noise, FedRob's affine map.

It is never sent to the server. `store/<client>/<round>.safetensors` is the client's memory after that round, so a run
that resumes from round r finds exactly that memory, even if the client was already further ahead. A checkpoint is at
most one round behind its clients, and a run may have to go back to the previous one: the three newest files are kept.
Each file contains a digest of its content, its client and its round. Checkpoints of a run on this machine record these
digests (`remembered`), so a run never resumes with a memory that was lost, swapped or changed (`missing`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import safetensors
import safetensors.torch

from fedrbn.errors import StorageError
from fedrbn.files import Folder
from fedrbn.nets.state import digest
from fedrbn.types import Tensors


@dataclass(frozen=True)
class Memory:
    """A client's memory: its round and its digest."""

    round: int
    digest: str


_SAFE_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}", re.ASCII)
_FILE = re.compile(r"([1-9][0-9]{0,8})\.safetensors", re.ASCII)
_KEPT = 3
_REMEDY = "Restore a copy of the folder, or train again from the beginning with --force."
_UNREADABLE = (safetensors.SafetensorError, ValueError, KeyError, TypeError, AttributeError, RecursionError)


def recall(store: Path | None, client: str, finished: int) -> Tensors:
    """The client's memory after `finished` rounds; empty if it had not taken part."""
    if store is None or not Folder(store.parent).exists(store.name):  # no client has a memory
        return {}
    number = _newest(store, client, finished)
    if number is None:
        return {}
    name = _name(store, client, number)
    try:
        with (
            Folder(store.parent).path_for_reading(name) as readable,
            safetensors.safe_open(readable, framework="pt") as file,
        ):
            noted = _noted(file.metadata())
            memory: Tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118  (not a mapping)
        if noted is not None and noted != _digest(memory, client, number):
            raise ValueError("its digest does not match its content, its client and its round")
    except _UNREADABLE as error:
        raise _damaged(store.parent / name, client, error) from error
    return memory


def remember(store: Path | None, client: str, finished: int, memory: Tensors) -> None:
    """Store the client's memory after `finished` rounds, and delete files that no checkpoint can need."""
    if not memory:
        return
    if store is None:
        if finished > 1:
            raise StorageError(
                f"got a method whose client {client!r} keeps {', '.join(memory)} between rounds, but no store; "
                "expected a folder for it. Create the Site with store=some_directory."
            )
        return  # a trial of a single round, as in cost estimates, does not need it
    folder, name = _parent(store), _name(store, client, finished)
    tensors = {key: value.contiguous() for key, value in memory.items()}
    metadata = {"fedrbn": json.dumps({"digest": _digest(tensors, client, finished)})}
    folder.write(name, safetensors.torch.save(tensors, metadata=metadata))
    rounds = _rounds(store, client)
    # Files of later rounds are obsolete: the run was restarted from an earlier round.
    needed = sorted(n for n in rounds if n <= finished)[-_KEPT:]
    for number in rounds - set(needed):
        folder.remove(_name(store, client, number))


def remembered(store: Path, finished: int) -> dict[str, Memory]:
    """The clients' memories after `finished` rounds, for a checkpoint to record. Only headers are read."""
    clients = (path.rpartition("/")[2] for path in Folder(store.parent).folders(store.name))
    found = {client: _memory(store, client, finished) for client in clients if _SAFE_NAME.fullmatch(client)}
    return {client: memory for client, memory in found.items() if memory is not None}


def missing(store: Path, noted: Mapping[str, Memory], finished: int) -> str | None:
    """Which memory is not the one that a checkpoint recorded; None if all of it is intact. Whole files are read."""
    added = sorted(remembered(store, finished).keys() - noted.keys())
    if added:
        return f"a memory in {store / added[0]}; expected none of client {added[0]!r}. Remove the folder."
    for client, expected in noted.items():
        got = _memory(store, client, finished)
        if got != expected:
            there = "nothing" if got is None else f"the memory of round {got.round} with digest {got.digest[:12]}"
            return (
                f"{there} in {store / client}; expected the memory of client {client!r} of round {expected.round} "
                f"(digest {expected.digest[:12]}). {_REMEDY}"
            )
        recall(store, client, finished)  # compares the content with the digest
    return None


def forgotten(store: Path, clients: Mapping[str, int], finished: int) -> str | None:
    """Like `missing`, for a checkpoint without digests: `clients` says who must have a memory, and since when."""
    for client, number in clients.items():
        newest = _newest(store, client, finished)
        if newest is None or newest < number:
            there = "nothing" if newest is None else f"the memory of round {newest}"
            return f"{there} in {store / client}; expected the memory of client {client!r} of round {number}. {_REMEDY}"
    return None


def _memory(store: Path, client: str, finished: int) -> Memory | None:
    number = _newest(store, client, finished)
    if number is None:
        return None
    name = _name(store, client, number)
    try:
        with (
            Folder(store.parent).path_for_reading(name) as readable,
            safetensors.safe_open(readable, framework="pt") as file,
        ):
            return Memory(number, _noted(file.metadata()) or "")
    except _UNREADABLE as error:
        raise _damaged(store.parent / name, client, error) from error


def _noted(metadata: Mapping[str, str] | None) -> str | None:
    """The digest in a file; None if an older version wrote it without one."""
    return str(json.loads(metadata["fedrbn"])["digest"]) if metadata and "fedrbn" in metadata else None


def _digest(memory: Tensors, client: str, number: int) -> str:
    return digest(memory, {"client": client, "round": number})


def _damaged(path: Path, client: str, error: Exception) -> StorageError:
    return StorageError(
        f"got {path}, which cannot be read ({error}); expected the memory of client {client!r}. It is damaged: "
        "restore a copy, or run again from the beginning with --force."
    )


def _newest(store: Path, client: str, finished: int) -> int | None:
    return max((number for number in _rounds(store, client) if number <= finished), default=None)


def _rounds(store: Path, client: str) -> set[int]:
    matches = (_FILE.fullmatch(name) for name in Folder(store.parent).names(f"{store.name}/{_safe(client)}"))
    return {int(match[1]) for match in matches if match}


def _name(store: Path, client: str, number: int) -> str:
    """The name of a file, relative to the folder that contains the store."""
    return f"{store.name}/{_safe(client)}/{number}.safetensors"


def _parent(store: Path) -> Folder:
    store.parent.mkdir(parents=True, exist_ok=True)
    return Folder(store.parent)


def _safe(client: str) -> str:
    if not _SAFE_NAME.fullmatch(client):
        raise StorageError(
            f"got client {client!r}, whose memory is kept in a folder of that name; expected at most 128 "
            "letters, digits, '.', '_' and '-', and no '.' at the start. Rename the client."
        )
    return client
