"""What a client remembers from round to round, on its own disk: Free AT's noise, FedRob's affine map.

It never reaches the server. `store/<client>/<round>.safetensors` is what the client knew after that round, so a run
that continues from round r finds exactly what was there, even if the client had already gone on. A checkpoint is at
most one round behind its clients, and a run may have to go back to the one before it: the three newest files are kept.
"""

from __future__ import annotations

import re
from pathlib import Path

import safetensors
import safetensors.torch

from fedrbn.storage import StorageError, write_atomically
from fedrbn.types import Tensors

_SAFE_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}", re.ASCII)
_KEPT = 3


def recall(store: Path | None, client: str, finished: int) -> Tensors:
    """What the client remembered when `finished` rounds were finished; nothing if it had not taken part."""
    if store is None or not store.exists():  # nobody remembers anything
        return {}
    path = _file(store, client, max((n for n in _rounds(store, client) if n <= finished), default=0))
    if not path.exists():
        return {}
    try:
        return safetensors.torch.load_file(path)
    except (safetensors.SafetensorError, OSError) as error:
        raise StorageError(
            f"got {path}, which cannot be read ({error}); expected what client {client!r} remembers. It is damaged: "
            "run again from the beginning with --force."
        ) from error


def remember(store: Path | None, client: str, finished: int, memory: Tensors) -> None:
    """Keep what the client remembers once `finished` rounds are finished, and drop what no checkpoint can need."""
    if not memory:
        return
    if store is None:
        if finished > 1:
            raise StorageError(
                f"got a method whose client {client!r} remembers {', '.join(memory)}, and nowhere to keep it; expected "
                "a store. Make the Site with store=some_directory."
            )
        return  # a trial of a single round, as in cost estimates, has no use for it
    path = _file(store, client, finished)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, safetensors.torch.save({name: value.contiguous() for name, value in memory.items()}))
    rounds = _rounds(store, client)
    # Later rounds than this are of a course that was abandoned: the run has been started again from further back.
    needed = sorted(n for n in rounds if n <= finished)[-_KEPT:]
    for number in rounds - set(needed):
        _file(store, client, number).unlink()


def _rounds(store: Path, client: str) -> set[int]:
    return {int(path.stem) for path in _folder(store, client).glob("[0-9]*.safetensors")}


def _file(store: Path, client: str, number: int) -> Path:
    return _folder(store, client) / f"{number}.safetensors"


def _folder(store: Path, client: str) -> Path:
    if not _SAFE_NAME.fullmatch(client):
        raise StorageError(
            f"got client {client!r}, whose memory is kept in a folder of that name; expected at most 128 "
            "letters, digits, '.', '_' and '-', and no '.' at the start. Rename the client."
        )
    return store / client
