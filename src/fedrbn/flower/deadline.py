"""A node stops a job at its deadline: the server no longer waits for the answer, and the node is free for the next job.

The time is checked whenever a layer of a network is called, which training, attacks and evaluation do all the time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook


class DeadlineError(RuntimeError):
    """A job that took longer than the server waits."""


@contextmanager
def within(seconds: float | None) -> Iterator[None]:
    """Raise `DeadlineError` in this block when a network is called after this many seconds; None never does."""
    if seconds is None:
        yield
        return
    end = time.monotonic() + seconds

    def check(_: nn.Module, __: object) -> None:
        if time.monotonic() > end:
            raise DeadlineError(
                f"got a job that is not done after {seconds:g} s; expected it to finish in time, because the server "
                "waits no longer. Raise flower.deadline or faults.deadline_seconds, or give the node less to do."
            )

    hook = register_module_forward_pre_hook(check)
    try:
        yield
    finally:
        hook.remove()
