"""Tensors and JSON as Flower records, checked on arrival: the sender is not trusted.

A set of tensors is one array whose bytes are a safetensors file, so that Flower transfers one object, not hundreds. The
record of the shared weights is the same object in every message of a round, so Flower stores and sends it once.
Nothing is ever unpickled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, TypeAlias, TypeVar

import safetensors
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from pydantic import ConfigDict, GetCoreSchemaHandler, ValidationError, create_model
from pydantic_core import CoreSchema, core_schema
from safetensors.torch import load as from_bytes
from safetensors.torch import save as to_bytes

from fedrbn.config.section import Section
from fedrbn.errors import MessageError
from fedrbn.types import Tensors

SAFETENSORS = "fedrbn.safetensors"
"""The type that marks the bytes of a Flower array as a safetensors file."""
MOST_TEXT = 1_000_000
"""Maximum characters of JSON in a message."""
_TENSORS = "tensors"
_TEXT = "json"
_HEADER = 4096
"""Upper limits for the bytes of a safetensors header: the fixed part and the part per tensor."""


@dataclass(frozen=True)
class Spec:
    """The required shape and type of a tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of the numbers."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize


Specs: TypeAlias = dict[str, Spec]


def specs(tensors: Tensors) -> Specs:
    """The specs of these tensors."""
    return {name: Spec(tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()}


def packed(tensors: Tensors) -> ArrayRecord:
    """Tensors as one record."""
    content = to_bytes({name: tensor.contiguous() for name, tensor in tensors.items()})
    return ArrayRecord({_TENSORS: Array("uint8", (len(content),), SAFETENSORS, content)})


def unpacked(records: RecordDict, name: str, expected: Mapping[str, Spec]) -> Tensors:
    """The tensors of a record; exactly the expected names, shapes and types."""
    most = sum(spec.nbytes for spec in expected.values()) + _HEADER * (len(expected) + 1)
    tensors = opened(records, name, most)
    if tensors.keys() != expected.keys():
        odd = sorted(tensors.keys() ^ expected.keys())[0]
        raise MessageError(
            f"got tensors in {name!r} that {'lack' if odd in expected else 'include'} {odd[:200]!r}; expected the "
            f"{len(expected)} of the agreed network. Check that both sides have the same model and fedrbn."
        )
    for key, tensor in tensors.items():
        spec = expected[key]
        if (tuple(tensor.shape), tensor.dtype) != (spec.shape, spec.dtype):
            raise MessageError(
                f"got {key!r} in {name!r} of {tensor.dtype} {tuple(tensor.shape)}; expected {spec.dtype} "
                f"{spec.shape}, as in the agreed network. Check that both sides have the same model."
            )
    return tensors


def opened(records: RecordDict, name: str, most: int) -> Tensors:
    """The tensors of a record of at most this many bytes, without checks of their names and shapes."""
    record = records.get(name)
    if not isinstance(record, ArrayRecord) or set(record) != {_TENSORS} or record[_TENSORS].stype != SAFETENSORS:
        raise MessageError(
            f"got a message without tensors {name!r}; expected one array of {SAFETENSORS}. Check that the other side "
            "runs fedrbn's app, and the same version."
        )
    content = record[_TENSORS].data
    if len(content) > most:
        raise MessageError(
            f"got {len(content)} bytes of tensors in {name!r}; expected at most {most}. Check that both sides have "
            "the same model."
        )
    try:
        return from_bytes(content)  # safetensors: a header and numbers, no executable content
    except (safetensors.SafetensorError, ValueError, TypeError, KeyError, RuntimeError) as error:
        raise MessageError(
            f"got tensors {name!r} that cannot be read ({error}); expected a safetensors file. The message is damaged."
        ) from None


class _Fields(Section):
    """Fields of a dataclass, read from JSON or from an instance."""

    model_config = ConfigDict(from_attributes=True, use_attribute_docstrings=False)


class Without:
    """Next to a dataclass in `Annotated`: JSON has its fields and their bounds, except those that are sent separately.

    The receiver gets an instance with None in place of those, and fills them in (`replace`).
    """

    def __init__(self, *elsewhere: str) -> None:
        self.elsewhere = elsewhere

    def __get_pydantic_core_schema__(self, kind: type[Any], handler: GetCoreSchemaHandler) -> CoreSchema:
        """The schema of a section with the remaining fields."""
        model = self._section(kind)
        return core_schema.no_info_after_validator_function(
            lambda section: kind(**dict(section), **dict.fromkeys(self.elsewhere)),
            handler(model),
            serialization=core_schema.plain_serializer_function_ser_schema(model.model_validate),
        )

    def _section(self, kind: type[Any]) -> type[_Fields]:
        left: dict[str, Any] = {
            field.name: (field.type, ... if field.default is MISSING else field.default)
            for field in fields(kind)
            if field.name not in self.elsewhere
        }
        return create_model(kind.__name__, __base__=_Fields, __module__=kind.__module__, **left)


def text(value: Section) -> ConfigRecord:
    """A value as JSON in a record."""
    return ConfigRecord({_TEXT: value.model_dump_json(exclude_none=True)})


_S = TypeVar("_S", bound=Section)


def value_of(records: RecordDict, name: str, kind: type[_S]) -> _S:
    """The value that `text` wrote, validated."""
    record = records.get(name)
    content = record.get(_TEXT) if isinstance(record, ConfigRecord) else None
    if not isinstance(content, str) or len(content) > MOST_TEXT:
        raise MessageError(
            f"got a message without a readable {name!r}; expected JSON of at most {MOST_TEXT} characters. Check that "
            "the other side runs fedrbn's app, and the same version."
        )
    try:
        return kind.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise MessageError(
            f"got {name!r} with {place or 'content'}: {first['msg']}; expected a {kind.__name__}. Check that both "
            "sides run the same version of fedrbn."
        ) from None


def size(records: RecordDict) -> int:
    """Bytes of the payload of a message, without protocol overhead."""
    return sum(
        len(array.data) for record in records.values() if isinstance(record, ArrayRecord) for array in record.values()
    ) + sum(
        len(content.encode())
        for record in records.values()
        if isinstance(record, ConfigRecord)
        for content in record.values()
        if isinstance(content, str)
    )
