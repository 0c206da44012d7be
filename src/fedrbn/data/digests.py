"""Digests of samples, which show whether two evaluations used the same images."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from fedrbn.data.samples import Samples


def digest_of(samples: Samples) -> str:
    """64 hex digits that identify these samples and their order; the samples cannot be recovered from them."""
    hasher = hashlib.sha256()
    hasher.update(samples.images.numpy().tobytes())
    hasher.update(samples.labels.numpy().tobytes())
    return hasher.hexdigest()


def digest_of_all(clients: Iterable[tuple[str, str]]) -> str:
    """12 hex digits from all clients' ids and digests, so that test samples can be compared without sharing them."""
    hasher = hashlib.sha256()
    for client, digest in clients:
        hasher.update(f"{client} {digest}\n".encode())
    return hasher.hexdigest()[:12]
