"""Reads a table's numbers from finished runs.

| text | what it is |
|---|---|
| `ra`, `sa`, `ra@clean`, `ra adaptive` … | a column of the run's evaluation, mean over users, in % |
| `ra/mnist` | the same for the users of one domain |
| `ra[pgd-20:eps=16/255]` | robust accuracy under a further attack |
| `validation 0.5` | the validation score after this share of the rounds, in % |
| `validation 1 ra_at`, `validation 1 sa_st` | the RA of AT users or SA of ST users in that score, after all rounds |
| `T`, `T total` | 10¹² MACs of an epoch, or of all rounds, in the paper's count |
| `similarity a b`, `divergence a b`, `correlation` | of two domains, see fedrbn.reproduce.domain_divergence |
| `neighbours same`, `neighbours chance` | users whose most similar user is of their own domain, in %; see there |
| `round plan`, `round measured`, `round off` | of a fleet, in s and %; see fedrbn.reproduce.fleet_rounds |
| `shift trained 1 mean` … | how far the attack moves the input of the first batch norm, see fedrbn.reproduce.bn_shift |
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from fedrbn.attacks import attack_named, described
from fedrbn.config import Experiment
from fedrbn.errors import StorageError
from fedrbn.evaluation.records import EvaluationRecord
from fedrbn.reproduce import measures
from fedrbn.runs.directory import RunDirectory
from fedrbn.runs.records import evaluations, rounds, stops
from fedrbn.runs.store import run_folder

TERA = 1e12


def directory(experiment: Experiment, store: Path) -> Path:
    """The directory of a config's run in the store."""
    return run_folder(store, experiment)


def readable(experiment: Experiment, store: Path) -> Path | None:
    """The directory of a config's run in the store; None if it is broken or belongs to another experiment.

    Such a directory only leaves its cell of a table empty.
    """
    try:
        return run_folder(store, experiment)
    except StorageError:
        return None


def value(path: Path, text: str, attacks: Sequence[str] = ()) -> float | None:
    """The number that a text names, in the unit of tables; None if the run has not got that far."""
    record = evaluation(path)
    if record is None:
        return None
    if text in ("T", "T total"):
        return _macs(record, text == "T total")
    first = text.split(" ", maxsplit=1)[0]
    if first in measures.MEASURES:
        return measures.value(path, text)
    if first == "validation":
        _, share, *part = text.split(" ")
        return _percent(_validation(path, float(share), *part))
    if text.startswith("ra["):
        return _percent(_under_attack(path, text[3:-1], attacks))
    metric, slash, domain = text.partition("/")
    return _percent((record.domains.get(domain, {}) if slash else record.mean).get(metric))


def evaluation(path: Path) -> EvaluationRecord | None:
    """The record of the final evaluation; None if the run is not finished."""
    if not (path / "config.toml").is_file():
        return None
    records = evaluations(RunDirectory.open(path))
    return records[0] if records else None


def stopped(path: Path) -> int | None:
    """The round in which a run had too few valid answers; None if it finished, continued, or has not got that far."""
    if evaluation(path) is not None or not (path / "config.toml").is_file():
        return None
    run = RunDirectory.open(path)
    found = [stop.round for stop in stops(run)]
    return found[-1] if found and found[-1] > len(rounds(run)) else None


def under_attacks(path: Path, attacks: Sequence[str]) -> EvaluationRecord | None:
    """The record of an evaluation with all of these attacks; None if there is none yet.

    It must have the branch and the images of the final evaluation, because users can add other evaluations.
    """
    first, *later = evaluations(RunDirectory.open(path))
    wanted = (first.deployment, first.samples_digest)
    same = [record for record in later if (record.deployment, record.samples_digest) == wanted]
    return next((record for record in same if all(_label(path, record, text) for text in attacks)), None)


def _label(path: Path, record: EvaluationRecord, text: str) -> str | None:
    """The name of an attack in a record, found by its settings, because an attack can be written in several ways."""
    wanted = described(attack_named(text, RunDirectory.open(path).experiment().attack))
    return next((label for label, attack in record.attacks.items() if attack.settings == wanted), None)


def _macs(record: EvaluationRecord, total: bool) -> float | None:
    """10¹² MACs in the paper's count; None if the record does not contain the cost."""
    if record.cost is None:
        return None
    return (record.cost.macs_total if total else record.cost.macs_per_epoch).paper / TERA


def _under_attack(path: Path, attack: str, attacks: Sequence[str]) -> float | None:
    record = under_attacks(path, attacks)
    label = None if record is None else _label(path, record, attack)
    return None if record is None or label is None else record.mean.get(record.robust_column(label))


def _validation(path: Path, share: float, part: str = "score") -> float | None:
    """The latest score, or part of it, up to the round in which this share of the rounds is finished."""
    records = rounds(RunDirectory.open(path))
    last = math.ceil(share * records[-1].round - 1e-9) if records else 0  # 0.1 is not exact
    scores = [record.validated(part) for record in records if record.round <= last]
    return next((score for score in reversed(scores) if score is not None), None)


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share
