"""All randomness comes from (seed, round, client, purpose), so a run does not depend on where its clients run."""

from __future__ import annotations

import hashlib

import torch


def derive(seed: int, *names: str | int) -> int:
    """A 63-bit seed for one purpose, for example derive(1, "round", 3, "client", "mnist-0", "batches")."""
    text = "\x1f".join([str(seed), *(str(name) for name in names)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def generator(seed: int, *names: str | int) -> torch.Generator:
    """A fresh CPU generator for one purpose."""
    return torch.Generator().manual_seed(derive(seed, *names))
