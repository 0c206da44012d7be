"""Digests that name samples, so that evaluations on the same images can be told from others."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from fedrbn.data.samples import Samples


def digest_of(samples: Samples) -> str:
    """Sixty-four hex digits that name these samples and their order; the samples cannot be found from them."""
    hasher = hashlib.sha256()
    hasher.update(samples.images.numpy().tobytes())
    hasher.update(samples.labels.numpy().tobytes())
    return hasher.hexdigest()


def digest_of_all(clients: Iterable[tuple[str, str]]) -> str:
    """Twelve hex digits from every client's id and digest: what a client says is enough to compare test samples."""
    hasher = hashlib.sha256()
    for client, digest in clients:
        hasher.update(f"{client} {digest}\n".encode())
    return hasher.hexdigest()[:12]
