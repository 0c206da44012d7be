"""Messages between this process and its workers: large tensors in shared memory, small ones as bytes."""

from __future__ import annotations

import weakref
from dataclasses import replace
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from safetensors.torch import load as from_bytes
from safetensors.torch import save as to_bytes
from torch import Tensor

from fedrbn.federated.protocol import Answers, Evaluate, Train, Upload
from fedrbn.types import Tensors

_SMALL = {Train: "personal", Evaluate: "personal", Upload: "personal", Answers: "correct"}
"""The field of each message that holds many small tensors."""


class TensorBlock(NamedTuple):
    """Tensors one after another in a block of shared memory."""

    number: int
    """The number of the block in the buffers that it comes from."""
    block: Tensor | None
    """None if the receiver already has it."""
    contents: tuple[tuple[str, torch.dtype, torch.Size], ...]

    def views(self) -> Tensors:
        """Views of the tensors in the block."""
        block = self.block
        if block is None:
            raise ValueError(
                f"got parcel {self.number} without its block; expected `BorrowedBuffers` to have put it in."
            )
        ends = accumulate(_room(dtype, shape) for _, dtype, shape in self.contents)
        return {
            name: block[end - _room(dtype, shape) :][: dtype.itemsize * shape.numel()].view(dtype).view(shape)
            for (name, dtype, shape), end in zip(self.contents, ends, strict=True)
        }


def _room(dtype: torch.dtype, shape: torch.Size) -> int:
    """Bytes of a tensor including padding, so that the next one starts on a new cache line."""
    return -(-dtype.itemsize * shape.numel() // 64) * 64


class Returned(NamedTuple):
    """Tells the owner of the buffers which blocks are no longer in use."""

    numbers: tuple[int, ...]


class SharedBuffers:
    """A process's blocks of shared memory for sending, each reused once the receiver has released it.

    A new block takes eight times as long as writing into it: the system clears and maps it page by page.
    """

    def __init__(self) -> None:
        self.blocks: list[Tensor] = []
        self.free: set[int] = set()
        self.sent: set[int] = set()
        """Blocks that the receiver has. Fetching one needs the sender, so a hanging sender would block the receiver."""

    def put(self, tensors: Tensors) -> TensorBlock:
        """Copy the tensors into a block that is not in use."""
        contents = tuple((name, tensor.dtype, tensor.shape) for name, tensor in tensors.items())
        size = sum(_room(dtype, shape) for _, dtype, shape in contents) or 1
        number = next((n for n in sorted(self.free) if len(self.blocks[n]) >= size), len(self.blocks))
        if number == len(self.blocks):
            self.blocks.append(share(torch.empty(size, dtype=torch.uint8)))
        self.free.discard(number)
        parcel = TensorBlock(number, self.blocks[number], contents)
        for name, place in parcel.views().items():
            place.copy_(tensors[name])
        return parcel

    def send(self, tensors: Tensors) -> TensorBlock:
        """Like `put`, for a single receiver that keeps the blocks it gets (`BorrowedBuffers`)."""
        parcel = self.put(tensors)
        if parcel.number in self.sent:
            return parcel._replace(block=None)
        self.sent.add(parcel.number)
        return parcel

    def take_back(self, returned: Returned | None = None) -> None:
        """Allow these blocks, or all, to be overwritten."""
        self.free.update(range(len(self.blocks)) if returned is None else returned.numbers)


class BorrowedBuffers:
    """The receiver's list of the blocks it has borrowed."""

    def __init__(self) -> None:
        self.blocks: dict[int, Tensor] = {}
        """Kept, because mapping a block takes longer than reading it."""
        self.owners: dict[int, weakref.ref[Any]] = {}
        """The object that the tensors in each borrowed block keep alive."""

    def unpacked(self, parcel: TensorBlock) -> Tensors:
        """The tensors, without a copy: the block stays borrowed as long as one of them is alive."""
        if parcel.block is not None:
            self.blocks[parcel.number] = parcel.block
        owner = self.blocks[parcel.number].numpy()
        self.owners[parcel.number] = weakref.ref(owner)
        return parcel._replace(block=torch.from_numpy(owner)).views()

    def ended(self) -> Returned:
        """The blocks without live tensors, each reported once."""
        numbers = tuple(number for number, owner in self.owners.items() if owner() is None)
        for number in numbers:
            del self.owners[number]
        return Returned(numbers)


class Packed(NamedTuple):
    """A message in transit: its small tensors as bytes, in order, and a block with the large ones."""

    message: Any
    order: tuple[str, ...]
    content: bytes
    parcel: TensorBlock | None


def packed(message: Any, buffers: SharedBuffers | None = None) -> Any:
    """The message with its small tensors as bytes: in shared memory each one would need a file descriptor.

    The weights of an upload go into the buffers.
    """
    name = _SMALL.get(type(message))
    if name is None:
        return message
    tensors, parcel = getattr(message, name), None
    if buffers is not None and isinstance(message, Upload) and message.shared:
        message, parcel = replace(message, shared={}), buffers.send(message.shared)
    return Packed(replace(message, **{name: {}}), tuple(tensors), to_bytes(tensors), parcel)


def unpacked(said: Any, borrowed: BorrowedBuffers | None = None) -> Any:
    """The inverse of `packed`. The order of the tensors is kept: tables show columns in that order."""
    if not isinstance(said, Packed):
        return said
    tensors = from_bytes(said.content)
    message = replace(said.message, **{_SMALL[type(said.message)]: {name: tensors[name] for name in said.order}})
    if said.parcel is not None:
        if borrowed is None:
            raise ValueError("got an upload whose weights are in a block; expected `BorrowedBuffers` to track it.")
        message = replace(message, shared=borrowed.unpacked(said.parcel))
    return message


def share(tensor: Tensor) -> Tensor:
    """Move the tensor's storage to shared memory, where other processes can read it."""
    return tensor.share_memory_()  # type: ignore[no-any-return, no-untyped-call]
