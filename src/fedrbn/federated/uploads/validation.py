"""Checks an upload before any of it reaches the server's state.

An invalid upload is rejected. The reason says what was received, what was expected and what to do, and names the layer.
Rejected are tensors with unexpected names, shapes or types, NaN or infinite values, negative variances, an update that
is too large, and a number of samples that differs from the registered one. One such upload would corrupt the mean.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedrbn.errors import UploadError
from fedrbn.federated.aggregation.layout import Layout
from fedrbn.federated.protocol import Answers, Failure, Upload
from fedrbn.nets.dual_bn import DualNet
from fedrbn.nets.state import tensors
from fedrbn.types import Member, Role, Tensors

LARGEST_STATISTIC = 1e6
"""Means and variances may move by this many times their former size, or this many units: pixels are in [0, 1]."""

_MOST_ROUNDS = 2**31
_MOST_SHOWN = 100
"""Maximum characters of an invalid value in a message."""
_DIVERGED = "The client's training has diverged: lower train.lr, or check its data."


@dataclass(frozen=True)
class Movement:
    """The layer that an update moved most, and the norm of the whole update relative to the weights before it."""

    layer: str
    growth: float


@dataclass(frozen=True)
class UploadCheck:
    """What an upload is compared with: its member, what the member was sent, and the network's tensors."""

    member: Member
    sent: Tensors
    """All tensors that the client started from, shared and its own."""
    lengths: Mapping[str, float]
    """Their norms: those of the shared tensors are computed once for all clients."""
    names: Layout
    max_update: float
    scratch: Tensor
    """A buffer for differences, shared by all clients: allocating one per upload would fragment memory, and the server
    would grow with the number of clients."""

    def admit(self, upload: Upload) -> Movement:
        """Return how far a valid upload moved; raise `UploadError` with the reason if it is not valid."""
        for objection in self._wrong_form(upload):
            raise UploadError(objection)
        values = {n: tensor for n, tensor in {**upload.shared, **upload.personal}.items() if tensor.is_floating_point()}
        distances = {name: _distance(tensor, self.sent[name], self.scratch) for name, tensor in values.items()}
        for objection in self._wrong_values(values, distances):
            raise UploadError(objection)
        moved = self._movement(distances)
        if not moved.growth <= self.max_update:
            raise UploadError(
                f"got an update {moved.growth:.3g} times as long as the weights it started from, most of it in layer "
                f"{moved.layer!r}; expected at most {self.max_update:g} times (faults.max_update). {_DIVERGED}"
            )
        return moved

    def _movement(self, distances: Mapping[str, float]) -> Movement:
        """How far the upload is from what was sent; batch-norm statistics do not count: they follow the data."""
        statistics = {name for layer in self.names.batch_norms for name in layer.statistics}
        counted = {name: distance for name, distance in distances.items() if name not in statistics}
        if not counted:
            return Movement("none", 0.0)
        # Weights that start at zero have no norm to compare with, so a norm below 1 counts as 1.
        growth = math.hypot(*counted.values()) / max(math.hypot(*(self.lengths[name] for name in counted)), 1.0)
        return Movement(layer_of(max(counted, key=counted.__getitem__)), growth)

    def _wrong_form(self, upload: Upload) -> Iterator[str]:
        yield from self._wrong_facts(upload)
        kept = self.names.noised if self.member.role is Role.ST else frozenset[str]()
        for part, names in (("shared", self.names.shared), ("personal", self.names.personal)):
            yield from _wrong_names(part, getattr(upload, part), names - kept)
        for name, tensor in {**upload.shared, **upload.personal}.items():
            yield from _wrong_shape(name, tensor, self.sent[name])

    def _wrong_facts(self, upload: Upload) -> Iterator[str]:
        if type(upload.samples) is not int or upload.samples != self.member.samples:
            yield (
                f"got {_shown(upload.samples)} samples; expected the {self.member.samples} that the client registered "
                "with. Its data has changed, or it reports a false weight for the mean: register it again."
            )
        loss = upload.metrics.get("loss")
        if not _is_number(loss):
            yield f"got {_shown(loss)} as the training loss; expected a number. {_DIVERGED}"
        strange = next((name for name, value in upload.metrics.items() if not _is_number(value)), None)
        if strange is not None:
            yield f"got metric {strange!r} that is not finite; expected finite numbers. Check the client's program."

    def _wrong_values(self, values: Mapping[str, Tensor], distances: Mapping[str, float]) -> Iterator[str]:
        for name, tensor in values.items():
            # A finite distance from finite values means that all values are finite: usually no second pass is needed.
            bad = 0 if math.isfinite(distances[name]) else int((~torch.isfinite(tensor)).sum())
            if bad:
                yield (
                    f"got {bad} of {tensor.numel()} values in layer {layer_of(name)!r} ({name.rpartition('.')[2]}) "
                    f"that are NaN or infinite; expected numbers. {_DIVERGED}"
                )
        for layer in self.names.batch_norms:
            where = f"the {layer.branch.value} branch of batch-norm layer {layer.layer!r}"
            variance = values.get(layer.variance)
            if variance is not None and bool((variance < 0).any()):
                yield (
                    f"got a variance of {variance.min():.3g} in {where}; expected 0 or more. The upload is "
                    "damaged, or noise was added without clamping."
                )
            for name in layer.statistics:
                if name in values:
                    size = max(self.lengths[name], 1.0)
                    if not distances[name] <= LARGEST_STATISTIC * size:
                        yield (
                            f"got statistics of norm {length(values[name]):.3g} in {where}, which were {size:.3g}; "
                            f"expected them to move by at most {LARGEST_STATISTIC:.0e} times that. {_DIVERGED}"
                        )


def malformed(result: object) -> str | None:
    """Why this is not a valid answer: which field has the wrong type; None if all types are right."""
    if not isinstance(result, Upload | Answers | Failure):
        return (
            f"got a {type(result).__name__} from the executor; expected an Upload, Answers or a Failure. Check the "
            "executor's program."
        )
    wrong = next(_wrong_types(result), None)
    return wrong and f"got {wrong} in an answer. Check the client's and the executor's programs."


def _wrong_types(result: Upload | Answers | Failure) -> Iterator[str]:
    """Which fields of a result have a wrong type, and what was expected."""
    if not isinstance(result.client, str):
        yield f"client = {_shown(result.client)}; expected text"
    if not isinstance(result.round, int) or not abs(result.round) < _MOST_ROUNDS:
        yield f"round = {_shown(result.round)}; expected a whole number"
    if isinstance(result, Failure) and not isinstance(result.cause, str):
        yield f"cause = {_shown(result.cause)}; expected text"
    if isinstance(result, Upload):
        yield from _wrong_tensors("shared", result.shared)
        yield from _wrong_tensors("personal", result.personal)
        if not isinstance(result.metrics, dict) or not all(isinstance(name, str) for name in result.metrics):
            yield f"metrics of type {type(result.metrics).__name__}; expected numbers by name"
    if isinstance(result, Answers):
        yield from _wrong_tensors("correct", result.correct)
        if any(tensor.dtype != torch.bool or tensor.ndim != 1 for tensor in result.correct.values()):
            yield "answers that are not one boolean per sample; expected one boolean per sample"


def _wrong_tensors(part: str, given: object) -> Iterator[str]:
    if not isinstance(given, dict):
        yield f"{part} of type {type(given).__name__}; expected tensors by name"
        return
    for name, tensor in given.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            yield f"a {type(tensor).__name__} as {part} {_shown(name)}; expected a tensor"
        elif tensor.layout != torch.strided or tensor.device.type != "cpu" or tensor.requires_grad:
            yield f"{part} tensor {name!r}, which is sparse, on a device or part of a graph; expected a CPU tensor"


def _shown(value: object) -> str:
    """A value of any type as text for a message: shortened, and without numbers that Python refuses to print."""
    try:
        return repr(value)[:_MOST_SHOWN]
    except Exception:  # the class may come from a client
        return f"a value of type {type(value).__name__} that cannot be shown"


def _is_number(value: object) -> bool:
    try:
        return isinstance(value, float | int) and math.isfinite(value)
    except OverflowError:  # an integer that is larger than any float
        return False


def layer_of(tensor: str) -> str:
    """The layer that a tensor belongs to, by the tensor's name: `network.fc1` of `network.fc1.weight`."""
    return tensor.rpartition(".")[0] or tensor


def worst_layer(net: DualNet) -> str:
    """Where training diverged: the first layer with NaN or infinite values, else the layer with the largest value."""
    values = {name: tensor for name, tensor in tensors(net).items() if tensor.is_floating_point() and tensor.numel()}
    broken = next((name for name, tensor in values.items() if not bool(torch.isfinite(tensor).all())), None)
    if broken is not None:
        return f"The first layer with NaN or infinite values is {layer_of(broken)!r}."
    sizes = {name: tensor.abs().max().item() for name, tensor in values.items()}
    largest = max(sizes, key=sizes.__getitem__)
    return f"The largest value is in layer {layer_of(largest)!r} ({sizes[largest]:.3g})."


def _wrong_names(part: str, got: Mapping[str, Tensor], expected: frozenset[str]) -> Iterator[str]:
    missing, unknown = sorted(expected - got.keys()), sorted(got.keys() - expected)
    remedy = "The client runs a different network or method: use the server's settings and version there."
    if missing:
        yield f"got {part} tensors without {missing[0]!r}; expected all {len(expected)} of them. {remedy}"
    if unknown:
        yield f"got {part} tensor {unknown[0]!r}; expected one of {len(expected)} names of the network. {remedy}"


def _wrong_shape(name: str, tensor: Tensor, expected: Tensor) -> Iterator[str]:
    if tensor.shape != expected.shape or tensor.dtype != expected.dtype:
        yield (
            f"got tensor {name!r} of shape {tuple(tensor.shape)} and {tensor.dtype}; expected "
            f"{tuple(expected.shape)} and {expected.dtype}. The client runs a different network: check model.name and "
            "model.width."
        )


_CHUNK = 1 << 16
"""Values compared at a time: few enough for a core's cache, and no allocation is as large as a model."""


def length(tensor: Tensor) -> float:
    """The norm of a tensor as a flat vector."""
    return math.hypot(*(_length(part) for part in _chunks(tensor)))


def scratch() -> Tensor:
    """Memory for the differences of float32 numbers."""
    return torch.empty(_CHUNK)


def _distance(one: Tensor, other: Tensor, scratch: Tensor) -> float:
    own = one.dtype == scratch.dtype
    return math.hypot(
        *(
            _length(torch.sub(a, b, out=scratch[: len(a)]) if own else a - b)
            for a, b in zip(_chunks(one), _chunks(other), strict=True)
        )
    )


def _length(part: Tensor) -> float:
    """The norm of a flat tensor. Squares of large float32 numbers overflow, so those are summed in float64."""
    length = float(torch.linalg.vector_norm(part))
    return length if math.isfinite(length) else float(torch.linalg.vector_norm(part.double()))


def _chunks(tensor: Tensor) -> tuple[Tensor, ...]:
    return tensor.reshape(-1).split(_CHUNK)  # type: ignore[no-untyped-call, no-any-return]
