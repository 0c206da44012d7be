"""Uploads kept on disk for rules that need all of them: read back in chunks, never all at once."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from fedrbn.errors import StorageError
from fedrbn.federated.aggregation.mean import Contribution

CHUNK = 1 << 22
"""Numbers held in memory at a time, over all clients together: 16 MB of float32."""


@dataclass(frozen=True)
class Group:
    """Names that the same clients sent: all send θ, but only AT users send BN_a."""

    names: tuple[str, ...]
    senders: tuple[int, ...]
    """Positions of the clients in `Spool.waiting`."""


@dataclass(frozen=True)
class Spool:
    """The uploads of a round on disk. `waiting` holds everything except their tensors."""

    folder: Path
    waiting: tuple[Contribution, ...]
    sizes: dict[str, torch.Size]
    senders: dict[str, tuple[int, ...]]
    """For each name, the clients that sent it."""
    chunk: int = CHUNK

    def groups(self) -> list[Group]:
        """The names, grouped by their senders."""
        found: dict[tuple[int, ...], list[str]] = {}
        for name, senders in self.senders.items():
            found.setdefault(senders, []).append(name)
        return [Group(tuple(names), senders) for senders, names in found.items()]

    def parts(self, name: str) -> Iterator[tuple[slice, Tensor]]:
        """A tensor from all its senders, one slice at a time: (slice, senders × slice) in float64."""
        senders, count = self.senders[name], self.sizes[name].numel()
        step = max(1, self.chunk // len(senders))
        for start in range(0, count, step):
            where = slice(start, min(start + step, count))
            yield where, torch.stack([self._stretch(client, name, where) for client in senders])

    def contributions(self, clients: Sequence[int]) -> Iterator[Contribution]:
        """The uploads of these clients, one at a time."""
        for client in clients:
            flat = safetensors.torch.load_file(_path(self.folder, client))
            shaped = {name: tensor.reshape(self.sizes[name]) for name, tensor in flat.items()}
            yield replace(self.waiting[client], tensors=shaped)

    def _stretch(self, client: int, name: str, where: slice) -> Tensor:
        with safe_open(_path(self.folder, client), framework="pt") as file:
            stretch: Tensor = file.get_slice(name)[where]
        return stretch.double()


@contextmanager
def spooled(contributions: Iterable[Contribution], chunk: int = CHUNK) -> Iterator[Spool]:
    """Write uploads to disk as they arrive; they are deleted when this block ends.

    An upload with a NaN or infinite value is left out: no rule can order it among the others.
    """
    waiting: list[Contribution] = []
    sizes: dict[str, torch.Size] = {}
    senders: dict[str, list[int]] = {}
    with _temporary_folder() as folder:
        for contribution in contributions:
            if not all(torch.isfinite(tensor).all() for tensor in contribution.tensors.values()):
                continue
            flat = {name: tensor.contiguous().reshape(-1) for name, tensor in contribution.tensors.items()}
            _save(flat, _path(folder, len(waiting)))
            for name, tensor in contribution.tensors.items():
                sizes[name] = tensor.shape
                senders.setdefault(name, []).append(len(waiting))
            waiting.append(replace(contribution, tensors={}))
        sent = {name: tuple(who) for name, who in senders.items()}
        yield Spool(folder, tuple(waiting), sizes, sent, chunk)


@contextmanager
def _temporary_folder() -> Iterator[Path]:
    try:
        made = tempfile.TemporaryDirectory(prefix="fedrbn-")
    except OSError as error:
        raise _no_room(error) from error
    with made as folder:
        yield Path(folder)


def _save(flat: dict[str, Tensor], path: Path) -> None:
    try:
        safetensors.torch.save_file(flat, path)
    except (SafetensorError, OSError) as error:
        raise _no_room(error) from error


def _no_room(error: Exception) -> StorageError:
    return StorageError(
        f"got uploads that cannot be written to the folder for temporary files ({error}); expected enough space for "
        "one round. Free some space, or use another folder: TMPDIR=/some/folder. Then continue with --resume."
    )


def _path(folder: Path, client: int) -> Path:
    return folder / f"{client}.safetensors"
