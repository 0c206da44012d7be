"""The elements of a page for the template: tables, figures with their data, and the format of numbers."""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup

MINUS = "−"  # the sign, not a hyphen


@dataclass(frozen=True)
class PageTable:
    """A table of text that is shown unchanged. The first column names the rows."""

    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    text_columns: int = 1
    """The number of text columns from the left; the others are numbers and aligned as such."""
    totals: int = 0
    """The number of rows at the end that summarise the others."""
    explained: bool = False
    """Whether the last column is only an explanation and may be hidden if there is little space."""

    @property
    def wide(self) -> bool:
        """Whether it has too many columns for a sheet of paper."""
        return len(self.head) > 10

    @property
    def wordy(self) -> bool:
        """Whether rows have long names, which may wrap."""
        return any(len(row[0]) > 26 for row in self.rows)


@dataclass(frozen=True)
class Figure:
    """A chart, a note on it, and its data."""

    title: str
    chart: Markup
    data: PageTable
    note: str = ""


@dataclass(frozen=True)
class Tile:
    """A key number, with its name and its uncertainty."""

    name: str
    value: str
    detail: str = ""


def accuracy(share: float | None) -> str:
    """A share in percent, without the sign; a dash if there is none."""
    return "–" if share is None else f"{100 * share:.1f}"


def amount(value: float, unit: str) -> str:
    """A number with three digits and a unit prefix: 2.94 TMAC, 1.23 MB."""
    for prefix, size in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= 0.9995 * size:
            return f"{_three_digits(value / size)} {prefix}{unit}"
    return f"{_three_digits(value)} {unit}"


def _three_digits(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 99.95 else f"{value:.1f}" if abs(value) >= 9.995 else f"{value:.2f}"


def points(difference: float) -> str:
    """A difference of two shares in percentage points, with its sign."""
    shown = f"{abs(100 * difference):.1f}"
    return shown if shown == "0.0" else f"{'+' if difference > 0 else MINUS}{shown}"


def probability(p: float) -> str:
    """A p-value as text."""
    return "< 0.001" if p < 0.001 else f"{p:.3f}"
