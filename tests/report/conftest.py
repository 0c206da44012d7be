"""Two trained runs that differ in their method, a reproduced table, and ways to read a page."""

from __future__ import annotations

import json
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import fedrbn
from fedrbn.config import Experiment


@pytest.fixture(scope="session")
def rival(tmp_path_factory: pytest.TempPathFactory, tiny: Callable[..., Experiment]) -> Path:
    """A finished run of FATBN on the federation of `trained`. Do not write into it."""
    path = tmp_path_factory.mktemp("runs") / "rival"
    fedrbn.run(tiny(method={"name": "fatbn"}, train={"rounds": 2}), path)
    return path


@pytest.fixture(scope="session")
def result(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as fedrbn reproduce writes it, with two rows, one of which was not run."""
    numbers = [
        number("FedRBN", "RA", [41.0, 43.0], 62.0),
        number("FedRBN", "SA", [80.0, 82.0], 84.9),
        number("FedRBN", "T", [0.00612, 0.00612], 7.4),
        number("<script>alert(1)</script>", "RA", [], 60.0),
        number("<script>alert(1)</script>", "SA", [], 87.3),
    ]
    content = {
        "name": "benchmark",
        "title": "Benchmark & more",
        "place": "Table 2",
        "caption": "Scale smoke.",
        "scale": "smoke",
        "threat": "pixel",
        "seeds": [1, 2],
        "stand_ins": {"Digits": "digits-mini"},
        "numbers": numbers,
    }
    path = tmp_path_factory.mktemp("results") / "benchmark-smoke"
    path.mkdir()
    (path / "table.json").write_text(json.dumps(content), encoding="utf-8")
    return path


def number(row: str, metric: str, values: list[float], paper: float) -> dict[str, Any]:
    """One number of a reproduced table; two seeds a, b have the standard deviation |a − b| / √2."""
    mean = sum(values) / len(values) if values else None
    std = abs(values[0] - values[1]) / 2**0.5 if values else None
    seeds = {str(seed): value for seed, value in enumerate(values, start=1)}
    place = {"part": "Digits", "row": row, "column": "20 %", "metric": metric, "data": "digits-mini"}
    return {**place, "seeds": seeds, "mean": mean, "std": std, "paper": paper}


class Page(HTMLParser):
    """Reads a page: its elements with their attributes, its text, and its tables by caption."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.tables: dict[str, list[list[str]]] = {}
        self._inside: list[str] = []
        self._caption = ""
        self._rows: list[list[str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in {"meta", "link", "img"}:
            self._inside.append(tag)
        if tag == "table":
            self._caption, self._rows = "", []
        elif tag == "tr":
            self._rows.append([])
        elif tag in {"td", "th"}:
            self._rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self._inside.pop() == tag, f"{tag} closes another element"
        if tag == "table":
            self.tables[self._caption] = self._rows

    def handle_data(self, data: str) -> None:
        if self._inside and self._inside[-1] not in {"script", "style"}:
            self.text += data
        if "caption" in self._inside:
            self._caption += data
        elif self._inside and self._inside[-1] in {"td", "th"}:
            self._rows[-1][-1] += data

    def of(self, tag: str) -> list[dict[str, str | None]]:
        """The attributes of all elements of a kind."""
        return [attributes for name, attributes in self.elements if name == tag]
