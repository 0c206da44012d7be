"""The declaration of an experiment, the paper's or ours, in its TOML file: parts, each of which is a table.

A part has rows and columns. Each cell combines the settings of its part, row and column into one run, and the row says
what to read from that run. Settings always have the paper's size; a scale reduces them.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from fedrbn.config.text import nearest
from fedrbn.errors import ConfigError

SECTIONS = ("data", "federation", "model", "train", "method")
"""The sections of an experiment that a declaration may set; attack and seed come from the command line."""


class _Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    data: dict[str, Any] = {}
    federation: dict[str, Any] = {}
    model: dict[str, Any] = {}
    train: dict[str, Any] = {}
    method: dict[str, Any] = {}

    @property
    def settings(self) -> list[tuple[str, str, Any]]:
        """What is set here, as (section, key, value)."""
        return [(section, key, value) for section in SECTIONS for key, value in getattr(self, section).items()]


class Column(_Settings):
    """A group of columns, one for each metric."""

    label: str


class Row(_Settings):
    """A row with the paper's numbers: for each column one number per metric, or none if the paper has none."""

    label: str
    read: tuple[str, ...] | None = None
    """What to read from the run for each metric, if it differs from the experiment's."""
    paper: tuple[tuple[float, ...], ...] = ()
    paper_std: tuple[tuple[float, ...], ...] = ()
    """Their standard deviations, if the paper prints them; same shape as `paper`."""

    @model_validator(mode="after")
    def _deviations_fit(self) -> Row:
        if self.paper_std and [len(group) for group in self.paper_std] != [len(group) for group in self.paper]:
            raise ValueError(
                f"got paper_std = {self.paper_std} in row {self.label!r}; expected a deviation for each of the paper's "
                f"numbers {self.paper}"
            )
        return self


class Part(_Settings):
    """One table of the experiment."""

    label: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    against: str | None = None
    """The row that all others are compared with, sample by sample."""

    @model_validator(mode="after")
    def _numbers_fit(self) -> Part:
        if self.against is not None and self.against not in [row.label for row in self.rows]:
            raise ValueError(f"got against = {self.against!r}; expected the label of a row of part {self.label!r}")
        for row in self.rows:
            if row.paper and len(row.paper) != len(self.columns):
                raise ValueError(
                    f"got {len(row.paper)} groups of the paper's numbers in row {row.label!r}; expected one for each "
                    f"of the {len(self.columns)} columns, [] where the paper has none"
                )
        return self


class Declaration(BaseModel):
    """An experiment."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    name: str
    """The name of its file."""
    title: str
    place: str
    """Where it is in the paper, or in this project's documentation."""
    note: str = ""
    """Its setting, and what the paper leaves open."""
    metrics: tuple[str, ...] = ("RA", "SA")
    """Headings below each column."""
    read: tuple[str, ...] = ("ra", "sa")
    """What to read from a run for each metric; see fedrbn.reproduce.reading."""
    parts: tuple[Part, ...]

    @model_validator(mode="after")
    def _one_of_each_per_metric(self) -> Declaration:
        rows = [row for part in self.parts for row in part.rows]
        for found in [self.read, *(row.read for row in rows if row.read is not None)]:
            if len(found) != len(self.metrics):
                raise ValueError(f"got read = {found}; expected one for each of the metrics {self.metrics}")
        for row in rows:
            wrong = [numbers for numbers in row.paper if numbers and len(numbers) != len(self.metrics)]
            if wrong:
                raise ValueError(f"got {wrong[0]} in row {row.label!r}; expected a number for each of {self.metrics}")
        return self


EXPERIMENTS = Path(__file__).with_name("experiments")
"""The folder of declarations: the paper's in `paper`, our own in `ours`. They are part of the package."""


def names() -> list[str]:
    """All experiments."""
    return sorted(_files())


def _files() -> dict[str, Path]:
    return {path.stem: path for folder in ("paper", "ours") for path in sorted((EXPERIMENTS / folder).glob("*.toml"))}


def read(name: str) -> Declaration:
    """An experiment by its name."""
    known = _files()
    if name not in known:
        meant = nearest(name, known)
        remedy = f"Did you mean {meant!r}?" if meant else "fedrbn reproduce --list shows all."
        raise ConfigError(f"got experiment {name!r}; expected one of {', '.join(sorted(known))}. {remedy}")
    path = known[name]
    try:
        return Declaration.model_validate({"name": name, **tomllib.loads(path.read_text(encoding="utf-8"))})
    except (tomllib.TOMLDecodeError, ValidationError) as error:
        raise ConfigError(f"got {path}, which is not a declaration: {error}") from None
