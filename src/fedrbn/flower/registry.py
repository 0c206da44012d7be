"""The identity of each client: the node key and number of samples of its first registration, kept in `nodes.json`.

Client ids are names that nodes choose themselves; keys are checked by the SuperLink. A client belongs to the first node
that registers with its id. That node is recognised by its key or, if the operator has renewed the key, by the name that
the operator registered. A key has one client: otherwise one node could fill the federation with clients that never
answer. Keys count only if the SuperLink authenticates nodes: simulated nodes have no keys.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from flwr.serverapp import Grid
from pydantic import Field, TypeAdapter, ValidationError

from fedrbn.config.section import Section
from fedrbn.errors import StorageError
from fedrbn.federated.protocol import SampleCount
from fedrbn.files import MOST_TEXT, read_named, write_atomically
from fedrbn.flower.handshake import Digest

_PEM = b"-----BEGIN PUBLIC KEY-----"


class Identity(Section):
    """What the SuperLink knows about a node."""

    key: Digest | None = None
    """SHA-256 of its public key; None if it has none."""
    name: str | None = Field(default=None, max_length=1000)
    """The name under which the operator registered the key."""


class Registration(Identity):
    """A client at its first registration."""

    samples: SampleCount


ANYBODY = Identity()
_ENTRIES = TypeAdapter(dict[str, Registration])


def identities(grid: Grid) -> dict[int, Identity]:
    """The connected nodes by node id, with their keys if the SuperLink knows them."""
    tell = getattr(grid, "get_nodes", None)  # Flower's grids have it, but it is not part of their common interface
    if tell is None:
        return dict.fromkeys(grid.get_node_ids(), ANYBODY)
    return {
        node.node_id: Identity(key=hashlib.sha256(node.public_key).hexdigest(), name=node.name or None)
        if node.public_key.startswith(_PEM)
        else ANYBODY
        for node in tell()
    }


class Registry:
    """The clients of a run and their owners. Changes are on disk before a call returns."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.entries: dict[str, Registration] = _read(path)

    def objection(self, client: str, node: Identity) -> str | None:
        """Why a node cannot be this client; None if it can, because both are new or the node owns it."""
        own = [name for name, entry in self.entries.items() if node.key is not None and entry.key == node.key]
        if own and client not in own:
            return (
                f"got client {client!r} from the node with key {(node.key or '')[:12]}; expected {own[0]!r}, with "
                f"which this node first registered. Give the node its former name, or remove {own[0]!r} from "
                f"{self.path.name} while the run is stopped."
            )
        owner = self.entries.get(client)
        if owner is None or owner.key is None or owner.key == node.key or (owner.name and owner.name == node.name):
            return None
        return (
            f"got client {client!r} from a node with key {(node.key or 'none')[:12]}; expected key {owner.key[:12]}, "
            f"with which this client first registered. Give the node another name. If the client's key was renewed, "
            f"register it with the same --name as before, or remove the client from {self.path.name}."
        )

    def register(self, client: str, node: Identity, samples: int) -> Registration:
        """Register an admitted client; returns its registration, which for a known client does not change."""
        known = self.entries.get(client)
        entry = Registration(key=node.key, name=node.name, samples=known.samples if known else samples)
        if known is not None and (node.key is None or known.key == node.key):
            return known
        self.entries[client] = entry
        content = {name: value.model_dump(exclude_none=True) for name, value in self.entries.items()}
        write_atomically(self.path, json.dumps(content, indent=1).encode())
        return entry

    def samples(self) -> Mapping[str, int]:
        """The number of samples of each client's first registration."""
        return {client: entry.samples for client, entry in self.entries.items()}


def _read(path: Path) -> dict[str, Registration]:
    if not path.exists():
        return {}
    try:
        return _ENTRIES.validate_json(read_named(path, MOST_TEXT))
    except (OSError, ValidationError, ValueError, RecursionError) as error:
        raise StorageError(
            f"got {path}, which cannot be read ({type(error).__name__}); expected the node of each client. Restore "
            "it, or remove it: each client then belongs to the first node that registers with its id."
        ) from None
