"""Whether objects can be sent to worker processes, found out before any is started."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import is_dataclass
from functools import partial
from pathlib import Path
from types import FunctionType

import torch
from torch import nn


def unsendable(*parts: object) -> str | None:
    """Why these objects cannot be sent to a worker process; None if they can.

    Classes and functions are sent by name. One that is defined inside a function has no name that can be imported, and
    one that is defined in a notebook or at a prompt exists only there.
    """
    script = getattr(sys.modules["__main__"], "__file__", None)
    prompt = script is None or not Path(script).is_file()
    for code in _code_of(list(parts)):
        if "<locals>" in code.__qualname__:
            return f"{code.__qualname__}, which is defined inside a function"
        if prompt and code.__module__ == "__main__":
            return f"{code.__qualname__}, which is defined in a notebook or at a prompt"
    return None


def _code_of(waiting: list[object]) -> Iterator[type | FunctionType]:
    """The classes and functions that these objects consist of: networks, dataclasses and what they contain."""
    seen: set[int] = set()
    while waiting:
        value = waiting.pop()
        if id(value) in seen or isinstance(value, torch.Tensor):
            continue
        seen.add(id(value))
        if isinstance(value, type | FunctionType):
            yield value
        elif isinstance(value, list | tuple | set | frozenset):
            waiting += value
        elif isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, nn.Module) or is_dataclass(value):
            waiting += [type(value), *vars(value).values()]
        elif isinstance(value, partial):
            waiting += [value.func, value.args, value.keywords]
