"""Several runs side by side: names, means, significance."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedrbn.config import Experiment
from fedrbn.report.comparison import comparison, grouped
from fedrbn.report.gather import Run, read_run


def named(run: Run, experiment: Experiment) -> Run:
    return replace(run, experiment=experiment)


def test_runs_are_named_by_what_differs(trained: Path, tiny: Callable[..., Experiment]) -> None:
    run = read_run(trained)
    first = named(run, tiny(method={"lam": 0.0}))
    second = named(run, tiny(method={"lam": 0.5}, run={"seed": 2}))
    again = named(run, tiny(method={"lam": 0.5}, run={"seed": 1}))
    other = named(run, tiny(method={"name": "fatbn"}))
    groups = grouped([first, second, again, other])
    assert [group.label for group in groups] == ["fedrbn lam=0", "fedrbn lam=0.5", "fatbn"]
    assert groups[1].runs == (again, second)  # by seed
    widths = grouped([named(run, tiny(model={"width": width})) for width in (0.5, 0.25)])
    assert [group.label for group in widths] == ["fedrbn width=0.5", "fedrbn width=0.25"]


def test_one_run_is_not_a_comparison(trained: Path) -> None:
    assert comparison(grouped([read_run(trained)])) is None


def test_the_table_has_the_means_and_the_costs(trained: Path, rival: Path) -> None:
    runs = [read_run(trained), read_run(rival)]
    view = comparison(grouped(runs))
    assert view is not None
    head = view.overall.head
    for run, row in zip(runs, view.overall.rows, strict=True):
        assert run.ending is not None
        assert run.ending.cost is not None
        cells = dict(zip(head, row, strict=True))
        assert cells["SA"] == f"{100 * run.ending.mean['sa']:.1f}"
        assert cells["RA adaptive"] == f"{100 * run.ending.mean['ra adaptive']:.1f}"
        assert cells["epoch, paper's count"] == f"{run.ending.cost.macs_per_epoch.paper / 1e6:.0f} MMAC"
    assert [figure.title for figure in view.figures] == [
        "Robust over standard accuracy",
        "RA by domain",
        "SA by domain",
    ]


def test_significance_counts_the_samples_that_only_one_gets_right(trained: Path, rival: Path) -> None:
    ours, theirs = read_run(trained), read_run(rival)
    view = comparison(grouped([ours, theirs]))
    assert view is not None
    assert view.significance is not None
    assert not view.notes
    rows = {row[2]: row for row in view.significance.rows}
    assert list(rows) == ["SA", "RA", "RA adaptive"]
    first = torch.cat([table["sa"] for table in ours.answers().values()])
    second = torch.cat([theirs.answers()[client]["sa"] for client in ours.answers()])
    only = (int((first & ~second).sum()), int((second & ~first).sum()))
    assert rows["SA"][3] == str(len(first)) == "80"  # ten users with eight test images
    assert rows["SA"][7:9] == tuple(str(count) for count in only)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"samples_digest": "other"}, "tested on different images"),
        ({"seed": 9}, "has no run with this seed"),
        ({"attacks": {}}, "tested with different attacks"),
    ],
)
def test_runs_that_cannot_be_compared_are_named(
    trained: Path, rival: Path, changes: dict[str, object], reason: str
) -> None:
    theirs = read_run(rival)
    assert theirs.ending is not None
    if "attacks" in changes:
        attack = theirs.ending.attacks[theirs.ending.attack].model_copy(update={"settings": "PGD(stronger)"})
        changes = {"attacks": {theirs.ending.attack: attack}}
    changed = theirs.ending.model_copy(update=changes)
    view = comparison(grouped([read_run(trained), replace(theirs, evaluations=(changed,))]))
    assert view is not None
    assert view.significance is None
    assert len(view.notes) == 1
    assert reason in view.notes[0]


def test_columns_that_a_run_lacks_leave_gaps(trained: Path, rival: Path) -> None:
    """A user without test images takes a column out of the means; the other run is still shown."""
    theirs = read_run(rival)
    assert theirs.ending is not None
    without = {name: value for name, value in theirs.ending.mean.items() if name != "ra"}
    domains = {name: {"sa": values["sa"]} for name, values in theirs.ending.domains.items()}
    changed = theirs.ending.model_copy(update={"mean": without, "domains": domains})
    view = comparison(grouped([read_run(trained), replace(theirs, evaluations=(changed,))]))
    assert view is not None
    assert view.overall.rows[1][3] == "–"
    assert [row[0] for row in view.figures[0].data.rows] == ["fedrbn rounds=4"]
    assert all(row[2] == "–" for row in view.figures[1].data.rows)
