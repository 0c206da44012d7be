"""Measurements on a trained run in addition to its accuracies: stored in its directory, one file for each measure.

A table reads a number by its text (`similarity mnist svhn`, `shift trained 1 mean`), whose first word selects the
measure.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from fedrbn.files import Folder
from fedrbn.reproduce import bn_shift, domain_divergence, fleet_rounds


@dataclass(frozen=True)
class Measure:
    """A file in the run directory, and the function that fills it."""

    file: str
    of_run: Callable[[Path], dict[str, float]]


_DIVERGENCE = Measure("divergence.json", domain_divergence.measure)
MEASURES: Mapping[str, Measure] = {
    "similarity": _DIVERGENCE,
    "divergence": _DIVERGENCE,
    "correlation": _DIVERGENCE,
    "shift": Measure("shift.json", bn_shift.measure),
    "round": Measure("fleet-round.json", fleet_rounds.measure),
    "neighbours": Measure("neighbours.json", domain_divergence.neighbours),
}
"""Measures by the first word of the texts that read them."""


def needed(texts: Iterable[str]) -> tuple[Measure, ...]:
    """The measures that these texts read."""
    words = (text.split(" ", maxsplit=1)[0] for text in texts)
    return tuple(dict.fromkeys(MEASURES[word] for word in words if word in MEASURES))


def complete(path: Path, wanted: Iterable[Measure]) -> None:
    """Take the measurements that are not in the directory of a trained run yet."""
    folder = Folder(path)
    for measure in wanted:
        if not folder.exists(measure.file):
            folder.write(measure.file, json.dumps(measure.of_run(path), indent=1).encode())


def value(path: Path, text: str) -> float | None:
    """The number that a text names; None if it has not been measured."""
    (measure,) = needed([text])
    folder = Folder(path)
    if not folder.exists(measure.file):
        return None
    found: float | None = json.loads(folder.read(measure.file)).get(text)
    return found
