"""Read a table's number from a finished run.

| text | what it is |
|---|---|
| `ra`, `sa`, `ra@clean`, `ra adaptive` … | a column of the run's evaluation, mean over users, in % |
| `ra/mnist` | the same for the users of one domain |
| `ra[pgd-20]` | robust accuracy under a further attack |
| `validation 0.5` | the validation score after this share of the rounds, in % |
| `validation 1 ra_at`, `validation 1 sa_st` | of that score RA of AT users or SA of ST users, after all rounds |
| `T`, `T total` | 10¹² MACs of an epoch, or of all rounds, in the paper's count |
| `similarity a b`, `divergence a b`, `correlation` | of two domains, see fedrbn.reproduce.divergence |
| `neighbours same`, `neighbours chance` | users most similar to one of their own domain, in %; see the same |
| `shift trained 1 mean` … | how far the attack moves the input of the first batch norm, see fedrbn.reproduce.bn_shift |
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedrbn.config import Experiment
from fedrbn.reproduce import measures
from fedrbn.runs.directory import RunDirectory
from fedrbn.runs.records import evaluations, rounds

TERA = 1e12


def directory(experiment: Experiment, store: Path) -> Path:
    """Where the run of a config is in the store."""
    return store / experiment.run_name()


def value(path: Path, text: str, attacks: Sequence[str] = ()) -> float | None:
    """The number that a text names, in the unit of tables; None if the run is not that far."""
    record = evaluation(path)
    if record is None:
        return None
    if text in ("T", "T total"):
        count = "macs_per_epoch" if text == "T" else "macs_total"
        return float(record["cost"][count]["paper"]) / TERA
    first = text.split(" ", maxsplit=1)[0]
    if first in measures.MEASURES:
        return measures.value(path, text)
    if first == "validation":
        _, share, *part = text.split(" ")
        return _percent(_validation(path, float(share), *part))
    if text.startswith("ra["):
        return _percent(_under_attack(path, text[3:-1], attacks))
    metric, slash, domain = text.partition("/")
    return _percent((record["domains"].get(domain, {}) if slash else record["mean"]).get(metric))


def evaluation(path: Path) -> dict[str, Any] | None:
    """The record of the evaluation that ended the training; None if it is not finished."""
    if not (path / "config.toml").is_file():
        return None
    records = evaluations(RunDirectory.open(path))
    return records[0] if records else None


def stopped(path: Path) -> int | None:
    """The round in which a run had too few usable answers; None if it is finished, went on, or is not that far."""
    if evaluation(path) is not None or not (path / "config.toml").is_file():
        return None
    run = RunDirectory.open(path)
    stops = [int(record["round"]) for record in run.records("stops.jsonl")]
    return stops[-1] if stops and stops[-1] > len(run.records("rounds.jsonl")) else None


def under_attacks(path: Path, attacks: Sequence[str]) -> dict[str, Any] | None:
    """The record of an evaluation with all of these attacks; None if there is none yet.

    It must be of the branch and the images of the evaluation that ended the training: anybody may have added others.
    """
    first, *later = evaluations(RunDirectory.open(path))
    same = [record for record in later if all(record[key] == first[key] for key in ("deployment", "samples_digest"))]
    return next((record for record in same if set(attacks) <= record["attacks"].keys()), None)


def _under_attack(path: Path, attack: str, attacks: Sequence[str]) -> float | None:
    record = under_attacks(path, attacks)
    if record is None:
        return None
    found: float | None = record["mean"].get("ra" if attack == record["attack"] else f"ra[{attack}]")
    return found


def _validation(path: Path, share: float, part: str = "score") -> float | None:
    """The newest score, or part of it, by the round in which this share of the rounds is finished."""
    records = rounds(RunDirectory.open(path))
    last = math.ceil(share * records[-1]["round"] - 1e-9) if records else 0  # 0.1 has no exact float
    scores: list[float] = [
        record["validation"][part]
        for record in records
        if record["round"] <= last and record.get("validation", {}).get(part) is not None
    ]
    return scores[-1] if scores else None


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share
