"""A run as far as its records tell it: what a display shows, while it trains or afterwards."""

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
"""Stands for a value that is infinite or no number: training diverged there."""
RECENT = 20
"""Rounds that the time of those to come is estimated from."""


@dataclass(frozen=True)
class RoundHistory:
    """A run's finished rounds, with the number there will be."""

    rounds: int
    roles: Mapping[str, Role]
    entries: tuple[RoundRecord, ...] = ()
    finished: int = 0
    """Rounds that are finished, those before the first entry included."""

    def after(self, records: Iterable[RoundRecord]) -> RoundHistory:
        """The history with the records of the rounds that came next."""
        return self._with((*self.entries, *records))

    def until(self, count: int) -> RoundHistory:
        """The history as it was after its first so many entries."""
        return self._with(self.entries[:count])

    def _with(self, entries: tuple[RoundRecord, ...]) -> RoundHistory:
        return replace(self, entries=entries, finished=entries[-1].round if entries else self.finished)

    @property
    def seconds_left(self) -> float | None:
        """Until the rounds are done, if they take as long as the recent ones; None before the first."""
        if not self.entries:
            return None
        return fmean(own.seconds for own in self.entries[-RECENT:]) * (self.rounds - self.finished)

    def took_part(self, record: RoundRecord, role: Role) -> int:
        """Users of this role whose update counted."""
        return sum(self.roles.get(client) is role for client in record.clients)

    def values(self, name: str) -> list[float]:
        """All that was measured of one of the numbers of `RoundRecord`, such as loss, ra_at or sa_st, by rounds."""
        found = (getattr(own, name) for own in self.entries)
        return [value for value in found if value is not None]


def sparkline(values: Sequence[float], width: int = 24) -> str:
    """The values as bars of eight heights from the lowest to the highest; more values than `width` are averaged.

    Values that are all the same have middle height.
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
    """So many neighbouring parts whose sizes differ by one at most."""
    cuts = [round(index * len(values) / count) for index in range(count + 1)]
    return [values[start:end] for start, end in itertools.pairwise(cuts)]
