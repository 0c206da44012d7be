"""The history of a run from its records, for displays during training or afterwards."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from fedrbn.evaluation.records import RoundRecord
from fedrbn.types import Role

GLYPHS = "▁▂▃▄▅▆▇█"
NOT_A_NUMBER = "!"
"""Shown for an infinite or NaN value: training diverged there."""
RECENT = 20
"""Number of latest rounds from which the remaining time is estimated."""


@dataclass(frozen=True)
class RoundHistory:
    """A run's finished rounds, and its total number of rounds."""

    rounds: int
    roles: Mapping[str, Role]
    entries: tuple[RoundRecord, ...] = ()
    finished: int = 0
    """Number of finished rounds, including those before the first entry."""

    def after(self, records: Iterable[RoundRecord]) -> RoundHistory:
        """The history with the records of further rounds."""
        return self._with((*self.entries, *records))

    def until(self, count: int) -> RoundHistory:
        """The history as it was after its first `count` entries."""
        return self._with(self.entries[:count])

    def _with(self, entries: tuple[RoundRecord, ...]) -> RoundHistory:
        return replace(self, entries=entries, finished=entries[-1].round if entries else self.finished)

    @property
    def seconds_left(self) -> float | None:
        """Seconds until all rounds are done, if they take as long as the latest ones; None before the first round."""
        if not self.entries:
            return None
        return fmean(own.seconds for own in self.entries[-RECENT:]) * (self.rounds - self.finished)

    def took_part(self, record: RoundRecord, role: Role) -> int:
        """Users of this role whose update counted."""
        return sum(self.roles.get(client) is role for client in record.clients)

    def values(self, name: str) -> list[float]:
        """All measured values of one number of `RoundRecord`, such as loss, ra_at or sa_st, in the order of rounds."""
        found = (getattr(own, name) for own in self.entries)
        return [value for value in found if value is not None]


def sparkline(values: Sequence[float], width: int = 24) -> str:
    """The values as bars of eight heights from the lowest to the highest; more values than `width` are averaged.

    If all values are equal, the bars have medium height.
    """
    shown = values if len(values) <= width else [fmean(part) for part in _parts(values, width)]
    finite = [value for value in shown if math.isfinite(value)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 0.0)
    return "".join(_glyph(value, low, high) for value in shown)


def _glyph(value: float, low: float, high: float) -> str:
    if not math.isfinite(value):
        return NOT_A_NUMBER
    height = (value - low) / (high - low) if high > low else 0.5
    return GLYPHS[min(int(height * len(GLYPHS)), len(GLYPHS) - 1)]


def _parts(values: Sequence[float], count: int) -> list[Sequence[float]]:
    """Split into `count` consecutive parts whose sizes differ by at most one."""
    cuts = [round(index * len(values) / count) for index in range(count + 1)]
    return [values[start:end] for start, end in itertools.pairwise(cuts)]
