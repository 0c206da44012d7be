"""Several runs side by side: one row per method and setting, RA over SA, and whether differences are significant."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from fedrbn.evaluation.records import EvaluationRecord
from fedrbn.evaluation.significance import Comparison, compare
from fedrbn.evaluation.tables import spread
from fedrbn.report.accuracies import SHOWN
from fedrbn.report.charts import DISTINCT, DotRow, ScatterPoint, dots, scatter
from fedrbn.report.content import Figure, PageTable, accuracy, amount, points, probability
from fedrbn.report.gather import Run
from fedrbn.types import Tensors


@dataclass(frozen=True)
class SeedGroup:
    """Runs that differ only in their seed."""

    label: str
    runs: tuple[Run, ...]

    @property
    def evaluations(self) -> list[EvaluationRecord]:
        """The final evaluations of the finished runs."""
        return [run.ending for run in self.runs if run.ending is not None]


@dataclass(frozen=True)
class ComparisonView:
    """What the template shows for several runs."""

    overall: PageTable
    figures: tuple[Figure, ...]
    significance: PageTable | None
    notes: tuple[str, ...]


def grouped(runs: Sequence[Run]) -> list[SeedGroup]:
    """Runs grouped by their settings except the seed; named by their method and the settings in which they differ."""
    flat = [_flat(run) for run in runs]
    found: dict[str, list[Run]] = {}
    for run, settings in zip(runs, flat, strict=True):
        rivals = [each for each in flat if each["method.name"] == settings["method.name"]]
        named = [
            f"{key.partition('.')[2]}={value}"
            for key, value in settings.items()
            if key != "method.name"
            and len({each[key] for each in (rivals if key.startswith("method.") else flat) if key in each}) > 1
        ]
        found.setdefault(" ".join([settings["method.name"], *named]), []).append(run)
    return [
        SeedGroup(label, tuple(sorted(members, key=lambda run: run.experiment.run.seed)))
        for label, members in found.items()
    ]


def _flat(run: Run) -> dict[str, str]:
    """The settings that affect the numbers, except the seed, as text."""
    content = run.experiment.model_dump(mode="json", exclude={"run"}, exclude_none=True)
    return {
        f"{section}.{key}": value if isinstance(value, str) else _number(value)
        for section, settings in content.items()
        for key, value in settings.items()
    }


def _number(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else json.dumps(value, ensure_ascii=False)


def comparison(groups: Sequence[SeedGroup]) -> ComparisonView | None:
    """The sections for several runs; None if fewer than two are finished."""
    finished = [group for group in groups if group.evaluations]
    if sum(len(group.evaluations) for group in finished) < 2:
        return None
    table, notes = _significance(finished)
    return ComparisonView(_overall(finished), (*_trade_off(finished), *_by_domain(finished)), table, tuple(notes))


def _overall(groups: Sequence[SeedGroup]) -> PageTable:
    rows = []
    for group in groups:
        found = group.evaluations
        costs = [evaluation.cost for evaluation in found if evaluation.cost is not None]
        rows.append(
            (
                group.label,
                ", ".join(str(evaluation.seed) for evaluation in found),
                *(_spread(found, lambda e, c=column: e.mean.get(c)) for column in SHOWN.values()),  # type: ignore[misc]
                _spread(found, lambda e: e.worst_domain.get("ra adaptive", e.worst_domain.get("ra"))),
                amount(costs[0].macs_per_epoch.paper, "MAC") if costs else "–",
                amount(costs[0].traffic.round.down + costs[0].traffic.round.up, "B") if costs else "–",
            )
        )
    several = any(len(group.evaluations) > 1 for group in groups)
    return PageTable(
        "Accuracies in %, mean over users" + ("; mean ± standard deviation over seeds" if several else ""),
        ("run", "seed", *SHOWN, "worst domain, adaptive", "epoch, paper's count", "network per round"),
        tuple(rows),
    )


def _spread(found: Sequence[EvaluationRecord], read: Callable[[EvaluationRecord], float | None]) -> str:
    values = [read(evaluation) for evaluation in found]
    known = [value for value in values if value is not None]
    return spread(known) if len(known) == len(values) else "–"


def _trade_off(groups: Sequence[SeedGroup]) -> list[Figure]:
    shown, rows = [], []
    for group in groups:
        for evaluation in group.evaluations:
            sa, ra = evaluation.mean.get("sa"), evaluation.mean.get("ra")
            if sa is not None and ra is not None:
                shown.append(ScatterPoint(group.label, sa, ra, detail=f", seed {evaluation.seed}"))
                rows.append((group.label, str(evaluation.seed), accuracy(sa), accuracy(ra)))
    if not shown:
        return []
    title = "Robust over standard accuracy"
    data = PageTable(f"{title}, in %", ("run", "seed", "SA", "RA"), tuple(rows))
    return [Figure(title, scatter(title, shown, "SA", "RA"), data, "One point for each run; up and right is better.")]


def _by_domain(groups: Sequence[SeedGroup]) -> list[Figure]:
    """RA and SA by domain, if the runs have the same domains and are few enough to distinguish."""
    first = groups[0].evaluations[0]
    if len(groups) > DISTINCT or any(e.domains.keys() != first.domains.keys() for g in groups for e in g.evaluations):
        return []
    return [_domain_figure(groups, first, name, column) for name, column in (("RA", "ra"), ("SA", "sa"))]


def _domain_figure(groups: Sequence[SeedGroup], first: EvaluationRecord, name: str, column: str) -> Figure:
    """A row for each domain, a dot for each group that has the column in it."""
    rows = []
    for domain in first.domains:
        found = {group.label: [e.domains[domain].get(column) for e in group.evaluations] for group in groups}
        known = {label: [value for value in values if value is not None] for label, values in found.items()}
        means = {label: fmean(values) for label, values in known.items() if values}
        rows.append(DotRow(first.domain_label(domain), means))
    title = f"{name} by domain"
    labels = [group.label for group in groups]
    cells = tuple((row.label, *(accuracy(row.values.get(label)) for label in labels)) for row in rows)
    data = PageTable(f"{title}, in %, mean over seeds", ("domain", *labels), cells)
    return Figure(title, dots(title, rows, labels), data)


def _significance(groups: Sequence[SeedGroup]) -> tuple[PageTable | None, list[str]]:
    """Every run compared with the first group's run of the same seed, if both used the same images and attack."""
    rows: list[tuple[str, ...]] = []
    notes: list[str] = []
    base = {evaluation.seed: run for run in groups[0].runs if (evaluation := run.ending) is not None}
    for group in groups[1:]:
        for run in group.runs:
            if run.ending is None:
                continue
            other = base.get(run.ending.seed)
            reason = _not_comparable(other, run)
            if other is None or reason:
                notes.append(f"{group.label}, seed {run.ending.seed}: not compared sample by sample, {reason}.")
                continue
            for found in _compared(other, run):
                rows.append((f"{groups[0].label} against {group.label}", str(run.ending.seed), *found))
    head = ("runs", "seed", "accuracy", "samples", "first", "second", "difference", "only first right")
    caption = "Sample by sample, in %; p by the exact two-sided McNemar test, not corrected for several comparisons"
    return (PageTable(caption, (*head, "only second right", "p"), tuple(rows), text_columns=3) if rows else None), notes


def _not_comparable(first: Run | None, second: Run) -> str:
    if first is None or first.ending is None or second.ending is None:
        return "the first one has no run with this seed"
    if first.ending.samples_digest != second.ending.samples_digest:
        return "they were tested on different images"
    ours, theirs = first.ending, second.ending
    attacks = [(record.attack, record.main_attack.eps, record.main_attack.settings) for record in (ours, theirs)]
    if attacks[0] != attacks[1]:
        return "they were tested with different attacks"
    return ""


def _compared(first: Run, second: Run) -> list[tuple[str, ...]]:
    if first.ending is None:
        return []
    attack = first.ending.attack
    names = {"sa": "SA", f"ra[{attack}]": "RA", f"ra[{attack}] adaptive": "RA adaptive"}
    ours, theirs = (_only(run.answers(), names) for run in (first, second))
    found = {outcome.column: outcome for outcome in compare(ours, theirs)}
    return [(name, *_outcome(found[column])) for column, name in names.items() if column in found]


def _only(answers: dict[str, Tensors], columns: dict[str, str]) -> dict[str, Tensors]:
    return {client: {c: right for c, right in found.items() if c in columns} for client, found in answers.items()}


def _outcome(found: Comparison) -> tuple[str, ...]:
    return (
        str(found.samples),
        accuracy(found.ours),
        accuracy(found.theirs),
        points(found.ours - found.theirs),
        str(found.only_ours),
        str(found.only_theirs),
        probability(found.p),
    )
