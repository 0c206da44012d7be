"""A run as sections of the page: settings, outcome, accuracies, convergence, cost, donors, images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedrbn.config import Experiment
from fedrbn.evaluation.records import CheckRecord, EvaluationRecord, RoundRecord
from fedrbn.report.accuracies import Accuracies, accuracies
from fedrbn.report.charts import Series, heat, lines
from fedrbn.report.content import Figure, PageTable, accuracy, amount
from fedrbn.report.gather import Run
from fedrbn.report.overview import ending, failures, remarks, run_facts, settings_tables
from fedrbn.report.recomputed import CHECKED, Donations
from fedrbn.report.sample_sheet import Strip
from fedrbn.types import Role

MOST_CELLS = 2500
"""With more receivers × donors than this, the heat map shows domains instead of users."""


@dataclass(frozen=True)
class Extras:
    """What was computed from the checkpoint and the data, and why something could not be."""

    planned: int
    """The number of rounds of the whole run."""
    donations: Donations | None = None
    strips: tuple[Strip, ...] = ()
    checks: tuple[CheckRecord, ...] = ()
    no_images: str = ""
    no_checks: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class RunView:
    """Everything the template shows for a run; None where there is nothing to show."""

    anchor: str
    label: str
    data: str
    path: str
    finished: bool
    ending: str
    facts: tuple[tuple[str, str], ...]
    changed: PageTable
    settings: PageTable
    failures: PageTable | None
    accuracies: Accuracies | None
    convergence: tuple[Figure, ...]
    cost: PageTable | None
    donors: tuple[Figure, ...]
    strips: tuple[Strip, ...]
    strips_note: str
    no_images: str
    checks: PageTable | None
    alarm: str
    no_checks: str
    notes: tuple[str, ...]


def view(run: Run, label: str, anchor: str, extras: Extras) -> RunView:
    """The sections of a run."""
    evaluation = run.ending
    changed, settings = settings_tables(run.experiment)
    return RunView(
        anchor=anchor,
        label=label,
        data=run.experiment.data.name,
        path=str(run.path),
        finished=evaluation is not None,
        ending=ending(run, extras.planned),
        facts=run_facts(run),
        changed=changed,
        settings=settings,
        failures=failures(run),
        accuracies=None if evaluation is None else accuracies(run, evaluation),
        convergence=_convergence(run),
        cost=None if evaluation is None else _cost(evaluation, len(run.rounds)),
        donors=() if extras.donations is None else _donors(extras.donations),
        strips=extras.strips,
        strips_note=_strips_note(run.experiment),
        no_images=extras.no_images,
        checks=_checks(run.checks, extras.checks),
        alarm=_alarm(run.checks or extras.checks),
        no_checks=extras.no_checks,
        notes=(*extras.notes, *remarks(run)),
    )


def _convergence(run: Run) -> tuple[Figure, ...]:
    figures = []
    names = {"sa_st": "SA of ST users", "ra_at": "RA of AT users", "score": "score"}
    validated = [record for record in run.rounds if any(record.validated(part) is not None for part in names)]
    if validated:
        series = [Series(name, _points(validated, key)) for key, name in names.items()]
        chosen = None if run.ending is None else (float(run.ending.round), f"chosen: round {run.ending.round}")
        title = "Validation over rounds"
        rows = tuple((str(record.round), *(accuracy(record.validated(key)) for key in names)) for record in validated)
        chart = lines(title, [each for each in series if each.points], "round", shares=True, chosen=chosen)
        note = "The score selects the round: the mean over users of RA (AT users) or SA (ST users)."
        figures.append(Figure(title, chart, PageTable(f"{title}, in %", ("round", *names.values()), rows), note))
    by_role = {role: [member.id for member in run.members if member.role is role] for role in Role}
    losses = {f"{role.value} users": [(r.round, r.mean_loss(ids)) for r in run.rounds] for role, ids in by_role.items()}
    kept = {name: [(a, b) for a, b in found if b is not None] for name, found in losses.items()}
    if any(kept.values()):
        title = "Training loss over rounds"
        chart = lines(title, [Series(name, found) for name, found in kept.items() if found], "round", shares=False)
        tables = {name: dict(found) for name, found in kept.items()}
        rows = tuple(
            (str(record.round), *(_loss(tables[name].get(record.round)) for name in tables)) for record in run.rounds
        )
        note = "The mean objective over the users of a role; the two roles are not on the same scale."
        figures.append(Figure(title, chart, PageTable(title, ("round", *tables), rows), note))
    return tuple(figures)


def _points(records: Sequence[RoundRecord], key: str) -> list[tuple[float, float]]:
    found = [(float(record.round), record.validated(key)) for record in records]
    return [(number, value) for number, value in found if value is not None]


def _loss(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"


def _cost(evaluation: EvaluationRecord, rounds: int) -> PageTable | None:
    cost = evaluation.cost
    if cost is None:
        return None
    rows = [("Computing: one epoch of all users", _macs(cost.macs_per_epoch.paper), _macs(cost.macs_per_epoch.actual))]
    rows.append(("Computing: all rounds", _macs(cost.macs_total.paper), _macs(cost.macs_total.actual)))
    for duty, macs in cost.macs_per_image.items():
        rows.append((f"Computing: one training image of {_user(duty)}", _macs(macs.paper), _macs(macs.actual)))
    travel = cost.traffic
    for duty, sent in travel.client.items():
        rows.append((f"Network: one round of {_user(duty)}, down / up", "", _travel(sent.down, sent.up)))
    rows.append(("Network: one round of all, down / up", "", _travel(travel.round.down, travel.round.up)))
    total = _travel(rounds * travel.round.down, rounds * travel.round.up)
    rows.append((f"Network: all {rounds} rounds, down / up", "", total))
    return PageTable("Multiply-accumulates (MAC) and bytes of tensors", ("", "paper's count", "actual"), tuple(rows))


def _user(duty: str) -> str:
    return f"an {duty} user" if duty in {role.value for role in Role} else f"a user with the duty {duty}"


def _macs(value: float) -> str:
    return amount(value, "MAC")


def _travel(down: float, up: float) -> str:
    return f"{amount(down, 'B')} / {amount(up, 'B')}"


def _donors(donations: Donations) -> tuple[Figure, ...]:
    """Users × donors, unless there are too many; and the same by domain, if there are several."""
    figures = []
    own = f"{accuracy(donations.own_domain)} % comes from donors of the receiver's own domain."
    if len(donations.receivers) * len(donations.donors) <= MOST_CELLS:
        rows = [member.id for member in donations.receivers]
        columns = [member.id for member in donations.donors]
        figures.append(_heat_figure("Who gave robustness to whom", rows, columns, donations.weights, own))
    ours, theirs, table = donations.by_domain()
    if len(theirs) > 1 or not figures:
        figures.append(_heat_figure("The same by domain", ours, theirs, table, "Mean over the receivers of a domain."))
    return tuple(figures)


def _heat_figure(
    title: str, rows: Sequence[str], columns: Sequence[str], values: Sequence[Sequence[float]], note: str
) -> Figure:
    cells = tuple((name, *(accuracy(weight) for weight in weights)) for name, weights in zip(rows, values, strict=True))
    data = PageTable("Weights α in %: a row for each receiver, a column for each donor", ("receiver", *columns), cells)
    return Figure(title, heat(title, rows, columns, values), data, note)


def _strips_note(experiment: Experiment) -> str:
    return (
        "The first test images of one user of each domain (an ST user if there is one), not selected. Each is shown "
        f"clean, under {experiment.attack.name} with {experiment.attack.steps} step(s), and as their difference, "
        "amplified so that ±ε goes from black to white; grey is no change. Below: the network's prediction."
    )


def _checks(recorded: Sequence[CheckRecord], measured: Sequence[CheckRecord]) -> PageTable | None:
    """The check-list of the latest evaluation that has one, or else the one measured for the page."""
    if not recorded and not measured:
        return None
    words = {True: "✓ ok", False: "✗ FAILED", None: "? NOT MEASURED"}
    rows = tuple(
        (verdict.column or "all", verdict.name, words[verdict.passed], verdict.detail, verdict.allowed)
        for verdict in recorded or measured
    )
    origin = (
        "measured by fedrbn evaluate on samples of every user"
        if recorded
        else f"measured for this page on at most {CHECKED} test images of one user of each role and domain"
    )
    caption = f"Warning signs of an overestimated robustness, {origin}"
    return PageTable(caption, ("judges", "check", "result", "measured", "allowed"), rows, text_columns=5)


def _alarm(verdicts: Sequence[CheckRecord]) -> str:
    failed = sum(verdict.passed is False for verdict in verdicts)
    missing = sum(verdict.passed is None for verdict in verdicts)
    said = [f"{failed} of these failed. Do not trust the robust accuracies before you know why."] if failed else []
    said += [f"{missing} of these could not be measured. What they test is unchecked."] if missing else []
    return " ".join(said)
