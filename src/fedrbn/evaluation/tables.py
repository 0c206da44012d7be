"""Evaluation records as readable tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, stdev

from rich.table import Table
from rich.text import Text

from fedrbn.evaluation.records import EvaluationRecord
from fedrbn.evaluation.significance import Comparison

BRANCH = {"clean": "BN_c", "noised": "BN_a"}


def shown_column(name: str) -> str:
    """A column's name for display, with the paper's names of the branches."""
    for branch, paper in BRANCH.items():
        name = name.replace(f"@{branch}", f"@{paper}")
    return name


def evaluation_table(record: EvaluationRecord) -> Table:
    """SA and RA under the main attack, per domain and as the mean over users; for dual networks on each branch."""
    dual = "sa@noised" in record.mean
    shown = {} if dual else {"SA": "sa", "RA": "ra"}
    if dual:
        for branch, name in BRANCH.items():
            used = " (predicts)" if branch == record.deployment else ""
            shown |= {f"SA {name}{used}": f"sa@{branch}", f"RA {name}{used}": f"ra@{branch}"}
        if record.deployment not in BRANCH:
            shown |= {f"SA {record.deployment}": "sa", f"RA {record.deployment}": "ra"}
    if "ra adaptive" in record.mean and dual:
        shown["RA adaptive"] = "ra adaptive"
    about = caption(record, adaptive="RA adaptive" in shown)
    table = Table(title=f"{record.method} on {record.data}", caption=about)
    table.add_column("domain")
    for name in shown:
        table.add_column(name, justify="right")
    for domain, values in record.domains.items():
        name = record.domain_label(domain)
        table.add_row(name, *(percent(values.get(column)) for column in shown.values()))
    table.add_section()
    table.add_row("mean over users", *(percent(record.mean.get(column)) for column in shown.values()))
    return table


def attacks_table(record: EvaluationRecord) -> Table:
    """One row per attack: the clean and robust accuracy on the samples it was tried on, its interval, each domain."""
    table = Table(title=f"{record.method} on {record.data} under several attacks", caption=caption(record))
    for column in ("attack", "ε"):
        table.add_column(column, no_wrap=True)
    for column in ("samples", "SA", "RA", "95 % interval", "RA adaptive", "worst domain"):
        table.add_column(column, justify="right")
    for domain in record.domains:
        table.add_column(record.domain_label(domain), justify="right")
    for label, described in record.attacks.items():
        name = record.robust_column(label)
        worst = f"{name} adaptive" if f"{name} adaptive" in record.mean else name
        eps = described.eps
        table.add_row(
            label,
            "" if eps is None else f"{255 * eps:g}/255",
            str(record.samples[name]),
            percent(record.mean[record.clean_column(label)]),
            percent(record.mean[name]),
            "–".join(percent(bound) for bound in record.interval[name]),
            percent(record.mean.get(f"{name} adaptive")),
            percent(record.worst_domain.get(worst)),
            *(percent(values.get(worst)) for values in record.domains.values()),
        )
    return table


VERDICTS = {True: "ok", False: "FAILED", None: "NOT MEASURED"}


def checks_table(record: EvaluationRecord) -> Table:
    """The check-list; records of earlier versions contain neither the checked column nor the threshold."""
    table = Table(title="Can these numbers be trusted?")
    for column in ("judges", "check", "", "measured", "allowed"):
        table.add_column(column)
    for check in record.checks or ():
        row = (shown_column(check.column) or "all", check.name, VERDICTS[check.passed], check.detail, check.allowed)
        table.add_row(*(Text(cell) for cell in row))
    return table


def significance_table(comparisons: Iterable[Comparison], against: str) -> Table:
    """Pairwise comparison of two runs, sample by sample."""
    table = Table(title=f"Compared with {against}, sample by sample", caption="p: exact McNemar test, two-sided.")
    for column in ("column", "samples", "this run", "that run", "only this run right", "only that run right", "p"):
        table.add_column(column, justify="left" if column == "column" else "right")
    for c in comparisons:
        numbers = (c.samples, percent(c.ours), percent(c.theirs), c.only_ours, c.only_theirs, f"{c.p:.2g}")
        table.add_row(shown_column(c.column), *(str(number) for number in numbers))
    return table


def comparison_table(groups: Mapping[str, Sequence[EvaluationRecord]]) -> Table:
    """One row per method or setting: the mean over users, ± over seeds, and SA / RA of each domain."""
    first = next(iter(groups.values()))[0]
    seeds = sorted({record.seed for records in groups.values() for record in records})
    table = Table(title="Comparison on the same federation", caption=caption(first, seeds))
    table.add_column("method", no_wrap=True)
    table.add_column("predicts")
    for column in ("SA", "RA", "RA adaptive"):
        table.add_column(column, justify="right", no_wrap=True)
    for domain in first.domains:
        table.add_column(f"{first.domain_label(domain)}\nSA / RA", justify="right")
    for name, records in groups.items():
        by_domain = [
            " / ".join(percent(fmean(record.domains[domain][metric] for record in records)) for metric in ("sa", "ra"))
            for domain in first.domains
        ]
        overall = [spread([record.mean[metric] for record in records]) for metric in ("sa", "ra", "ra adaptive")]
        table.add_row(name, predicts(records[0]), *overall, *by_domain)
    return table


def predicts(record: EvaluationRecord) -> str:
    """The branch that predicts, by its name in the paper; networks with one set of statistics have only one."""
    if "sa@noised" not in record.mean:
        return "its only BN"
    return BRANCH.get(record.deployment, record.deployment)


def caption(record: EvaluationRecord, seeds: Sequence[int] = (), *, adaptive: bool = True) -> str:
    """What the numbers mean: attack, ε, threat model, what is attacked, seeds; `adaptive` if such a column is shown."""
    used = ", ".join(str(seed) for seed in seeds or [record.seed])
    eps = record.main_attack.eps
    radius = "" if eps is None else f", ε = {255 * eps:g}/255"
    worst = "Adaptive: the worst, per sample, of attacks on that network, on each branch and on their mean loss. "
    return (
        f"SA: accuracy on clean test images. RA: under attack ({record.attack}{radius}, threat model "
        f"{record.threat}) on the network that predicts. {worst if adaptive else ''}In %, averaged over users. "
        f"Seed {used}."
    )


def percent(value: float | None) -> str:
    """A share as a percentage; empty for None."""
    return "" if value is None else f"{100 * value:.1f}"


def spread(values: Sequence[float]) -> str:
    """Mean ± standard deviation over seeds, in percent; just the value for one seed."""
    if len(values) == 1:
        return percent(values[0])
    return f"{percent(fmean(values))} ± {percent(stdev(values))}"
