"""A limit for what may hang in a test."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

import pytest


@contextlib.contextmanager
def in_time(seconds: int) -> Iterator[None]:
    """Fails what takes longer."""

    def late(*_: object) -> None:
        pytest.fail(f"no answer within {seconds} seconds")  # no Exception, which callers might catch

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
