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
class RoundEntry:
    """What is shown of one finished round; None where it was not measured."""

    round: int
    seconds: float
    at: int
    """AT users whose update counted."""
    st: int
    failed: int
    loss: float | None = None
    ra_at: float | None = None
    """RA of AT users on validation data."""
    sa_st: float | None = None
    """SA of ST users on validation data."""


@dataclass(frozen=True)
class RoundHistory:
    """A run's finished rounds, with the number there will be."""

    rounds: int
    roles: Mapping[str, Role]
    entries: tuple[RoundEntry, ...] = ()
    finished: int = 0
    """Rounds that are finished, those before the first round_entry included."""

    def after(self, records: Iterable[RoundRecord]) -> RoundHistory:
        """The history with the records of the rounds that came next."""
        return self._with(self.entries + tuple(round_entry(record, self.roles) for record in records))

    def until(self, count: int) -> RoundHistory:
        """The history as it was after its first so many entries."""
        return self._with(self.entries[:count])

    def _with(self, entries: tuple[RoundEntry, ...]) -> RoundHistory:
        return replace(self, entries=entries, finished=entries[-1].round if entries else self.finished)

    @property
    def seconds_left(self) -> float | None:
        """Until the rounds are done, if they take as long as the recent ones; None before the first."""
        if not self.entries:
            return None
        return fmean(own.seconds for own in self.entries[-RECENT:]) * (self.rounds - self.finished)

    def values(self, name: str) -> list[float]:
        """All that was measured of loss, ra_at or sa_st, in the order of rounds."""
        found = (getattr(own, name) for own in self.entries)
        return [value for value in found if value is not None]


def round_entry(record: RoundRecord, roles: Mapping[str, Role]) -> RoundEntry:
    """A round from the line that was written for it."""
    taking_part = [roles.get(client) for client in record.clients]
    return RoundEntry(
        round=record.round,
        seconds=record.seconds,
        at=taking_part.count(Role.AT),
        st=taking_part.count(Role.ST),
        failed=len({failure.client for failure in record.failures}),
        loss=record.mean_loss(record.clients),
        ra_at=record.validated("ra_at"),
        sa_st=record.validated("sa_st"),
    )


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
