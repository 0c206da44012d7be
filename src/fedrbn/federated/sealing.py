"""How messages travel between this process and its workers: large tensors in shared memory, small ones as bytes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from safetensors.torch import load as from_bytes
from safetensors.torch import save as to_bytes
from torch import Tensor

from fedrbn.types import Answers, Evaluate, Tensors, Train, Upload

_SMALL = {Train: "personal", Evaluate: "personal", Upload: "personal", Answers: "correct"}
"""The field of each message that holds many small tensors."""


def sealed(message: Any) -> Any:
    """The message with its small tensors as bytes: in shared memory each of them would hold a file descriptor."""
    name = _SMALL.get(type(message))
    if name is None:
        return message
    tensors = getattr(message, name)
    return replace(message, **{name: {}}), tuple(tensors), to_bytes(tensors)


def opened(sealed: Any) -> Any:
    """The message that `sealed` closed, its tensors in the order they had: tables show columns in that order."""
    if not isinstance(sealed, tuple):
        return sealed
    message, order, content = sealed
    tensors = from_bytes(content)
    return replace(message, **{_SMALL[type(message)]: {name: tensors[name] for name in order}})


def in_shared_memory(tensors: Tensors) -> Tensors:
    """Copies of the tensors that other processes can see."""
    return {name: share(tensor.clone()) for name, tensor in tensors.items()}


def share(tensor: Tensor) -> Tensor:
    """Move the tensor's storage to shared memory, where other processes can see it."""
    return tensor.share_memory_()  # type: ignore[no-any-return, no-untyped-call]
