"""The server's state as one safetensors file, with a digest that detects every changed byte."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from fedrbn.config import Experiment, from_values
from fedrbn.errors import StorageError
from fedrbn.federated.protocol import ServerState
from fedrbn.federated.training.memory import Memory
from fedrbn.files import Folder
from fedrbn.nets.state import digest

FORMAT = "fedrbn-state/2"
_WITHOUT_DIGEST = "fedrbn-state/1"
"""The format without digests, which earlier versions wrote; it can still be read."""


_DAMAGE = (
    safetensors.SafetensorError, ValueError, KeyError, TypeError, AttributeError, OSError, OverflowError,
    IndexError, RecursionError,
)  # fmt: skip


class DamagedError(StorageError):
    """A checkpoint whose content has changed since it was written."""


@dataclass(frozen=True)
class Best:
    """The round that validation chose, and its score."""

    round: int
    score: float


@dataclass(frozen=True)
class Checkpoint:
    """A state of the server, the best round so far, and the experiment that both belong to."""

    state: ServerState
    best: Best | None
    experiment: Experiment | None = None
    """The experiment, without settings that do not affect results; None in files of older versions."""
    memory: dict[str, Memory] | None = None
    """The clients with memory, and what they remember; None in files of older versions."""


def current(name: str) -> str:
    """The file of the newest checkpoint of this name: last or best."""
    return f"{name}.safetensors"


def previous(name: str) -> str:
    """The file of the checkpoint before it."""
    return f"{name}.previous.safetensors"


def encode(checkpoint: Checkpoint) -> bytes:
    """The checkpoint as the content of a file."""
    state, best = checkpoint.state, checkpoint.best
    tensors = _flat(state)
    facts = {
        "format": FORMAT,
        "round": state.round,
        "reported": state.reported,
        "missed": state.missed,
        "shared": list(state.shared),
        "clients": list(state.personal),
        "best": None if best is None else [best.round, best.score],
    }
    if checkpoint.experiment is not None:
        facts["experiment"] = checkpoint.experiment.deciding()
    if checkpoint.memory is not None:
        facts["memory"] = {client: [kept.round, kept.digest] for client, kept in checkpoint.memory.items()}
    facts["digest"] = digest(tensors, facts)
    return safetensors.torch.save(tensors, metadata={"fedrbn": json.dumps(facts)})


def read(folder: Folder, name: str) -> Checkpoint:
    """Read a checkpoint. A truncated or changed one raises DamagedError, one of another version StorageError."""
    path = folder.path / name
    try:
        with folder.path_for_reading(name) as readable, safetensors.safe_open(readable, framework="pt") as file:
            facts = json.loads((file.metadata() or {})["fedrbn"])
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118  (not a mapping)
        if facts["format"] not in (FORMAT, _WITHOUT_DIGEST):
            raise StorageError(
                f"got checkpoint {path} of format {facts['format']!r}, which cannot be read by this version; expected "
                f"{FORMAT}. Use the version of fedrbn that wrote it, or remove it and train again."
            )
        if facts["format"] == FORMAT and facts.pop("digest") != digest(tensors, facts):
            raise ValueError("its digest does not match its content")
        best = None if facts["best"] is None else Best(int(facts["best"][0]), float(facts["best"][1]))
        return Checkpoint(_nested(tensors, facts), best, _experiment(facts), _memory(facts))
    except _DAMAGE as error:
        raise DamagedError(
            f"got checkpoint {path}, which cannot be read ({error}); expected {FORMAT}. It is damaged: restore "
            "a copy, or remove it and continue with --resume, or train again with --force."
        ) from error


def _experiment(facts: Mapping[str, Any]) -> Experiment | None:
    return from_values(facts["experiment"]) if "experiment" in facts else None


def _memory(facts: Mapping[str, Any]) -> dict[str, Memory] | None:
    if "memory" not in facts:
        return None
    return {str(client): Memory(int(number), str(digits)) for client, (number, digits) in facts["memory"].items()}


def _flat(state: ServerState) -> dict[str, Tensor]:
    flat = {f"shared/{name}": tensor for name, tensor in state.shared.items()}
    flat |= {f"velocity/{name}": tensor for name, tensor in state.velocity.items()}
    for client, tensors in state.personal.items():
        flat |= {f"personal/{client}/{name}": tensor for name, tensor in tensors.items()}
    return {name: tensor.contiguous() for name, tensor in flat.items()}


def _nested(flat: Mapping[str, Tensor], facts: Mapping[str, Any]) -> ServerState:
    """The state in its original order: safetensors sorts tensors and omits clients without batch norm."""
    whole: dict[str, dict[str, Tensor]] = {"shared": {}, "velocity": {}}
    personal: dict[str, dict[str, Tensor]] = {str(client): {} for client in facts.get("clients", ())}
    for key, tensor in flat.items():
        kind, _, rest = key.partition("/")
        if kind in whole:
            whole[kind][rest] = tensor
        elif kind == "personal":
            client, _, name = rest.rpartition("/")
            personal.setdefault(client, {})[name] = tensor
        else:
            raise ValueError(f"unknown tensor {key!r}")
    shared = {str(name): whole["shared"].pop(name) for name in facts.get("shared", ())} | whole["shared"]
    reported, missed = (
        {str(client): int(number) for client, number in facts.get(key, {}).items()} for key in ("reported", "missed")
    )
    return ServerState(int(facts["round"]), shared, personal, reported, whole["velocity"], missed)
