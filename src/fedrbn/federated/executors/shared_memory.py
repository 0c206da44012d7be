"""How messages travel between this process and its workers: large tensors in shared memory, small ones as bytes."""

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
    """Of the block, on the buffers it is from."""
    block: Tensor | None
    """None: the receiver has it already."""
    contents: tuple[tuple[str, torch.dtype, torch.Size], ...]

    def views(self) -> Tensors:
        """The tensors, where they lie."""
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
    """Bytes of a tensor with the gap behind it, so that the next one begins on a cache line of its own."""
    return -(-dtype.itemsize * shape.numel() // 64) * 64


class Returned(NamedTuple):
    """Says to the owner of a buffers which of its blocks are no longer looked at."""

    numbers: tuple[int, ...]


class SharedBuffers:
    """A process's blocks of shared memory for what it sends, each used again once the receiver has let go of it.

    A new block costs eight times as much as what is written into it: the system clears and maps it page by page.
    """

    def __init__(self) -> None:
        self.blocks: list[Tensor] = []
        self.free: set[int] = set()
        self.sent: set[int] = set()
        """Blocks that the receiver has. It fetches one with the sender's help, so a sender that hangs could hold it."""

    def put(self, tensors: Tensors) -> TensorBlock:
        """Copy the tensors into a block that nobody looks at."""
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
        """Like `put`, for a single receiver, which keeps the blocks that it gets (`BorrowedBuffers`)."""
        parcel = self.put(tensors)
        if parcel.number in self.sent:
            return parcel._replace(block=None)
        self.sent.add(parcel.number)
        return parcel

    def take_back(self, returned: Returned | None = None) -> None:
        """These blocks, or all, may be written again."""
        self.free.update(range(len(self.blocks)) if returned is None else returned.numbers)


class BorrowedBuffers:
    """The receiver's account of a buffers's blocks."""

    def __init__(self) -> None:
        self.blocks: dict[int, Tensor] = {}
        """Kept, because to map a block costs more than to read it."""
        self.owners: dict[int, weakref.ref[Any]] = {}
        """What the tensors in each block on loan keep alive."""

    def unpacked(self, parcel: TensorBlock) -> Tensors:
        """The tensors, without a copy: the block is on loan for as long as one of them is alive."""
        if parcel.block is not None:
            self.blocks[parcel.number] = parcel.block
        owner = self.blocks[parcel.number].numpy()
        self.owners[parcel.number] = weakref.ref(owner)
        return parcel._replace(block=torch.from_numpy(owner)).views()

    def ended(self) -> Returned:
        """The blocks of which no tensor is alive any more, each named once."""
        numbers = tuple(number for number, owner in self.owners.items() if owner() is None)
        for number in numbers:
            del self.owners[number]
        return Returned(numbers)


class Packed(NamedTuple):
    """A message as it travels: its small tensors as bytes, in their order, and a parcel with the large ones."""

    message: Any
    order: tuple[str, ...]
    content: bytes
    parcel: TensorBlock | None


def packed(message: Any, buffers: SharedBuffers | None = None) -> Any:
    """The message with its small tensors as bytes: in shared memory each of them would hold a file descriptor.

    The weights of an upload go to the buffers.
    """
    name = _SMALL.get(type(message))
    if name is None:
        return message
    tensors, parcel = getattr(message, name), None
    if buffers is not None and isinstance(message, Upload) and message.shared:
        message, parcel = replace(message, shared={}), buffers.send(message.shared)
    return Packed(replace(message, **{name: {}}), tuple(tensors), to_bytes(tensors), parcel)


def unpacked(said: Any, borrowed: BorrowedBuffers | None = None) -> Any:
    """The message that `packed` closed, its tensors in the order they had: tables show columns in that order."""
    if not isinstance(said, Packed):
        return said
    tensors = from_bytes(said.content)
    message = replace(said.message, **{_SMALL[type(said.message)]: {name: tensors[name] for name in said.order}})
    if said.parcel is not None:
        if borrowed is None:
            raise ValueError("got an upload whose weights are in a parcel; expected somebody to account for its block.")
        message = replace(message, shared=borrowed.unpacked(said.parcel))
    return message


def share(tensor: Tensor) -> Tensor:
    """Move the tensor's storage to shared memory, where other processes can see it."""
    return tensor.share_memory_()  # type: ignore[no-any-return, no-untyped-call]
