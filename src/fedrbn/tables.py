"""Evaluation records as tables for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from rich.table import Table

BRANCH = {"clean": "BN_c", "noised": "BN_a"}


def evaluation_table(record: Mapping[str, Any]) -> Table:
    """SA and RA per domain and in the mean over users; for dual networks on each branch."""
    columns = [column for column in ("clean", "noised") if f"sa@{column}" in record["mean"]]
    dual = "sa@noised" in record["mean"]
    table = Table(title=title(record), caption=caption(record))
    table.add_column("domain")
    for column in columns:
        used = " (predicts)" if dual and column == record["predict"] else ""
        name = f" {BRANCH[column]}{used}" if dual else ""
        table.add_column(f"SA{name}", justify="right")
        table.add_column(f"RA{name}", justify="right")
    rows = {record["labels"].get(domain, domain): values for domain, values in record["domains"].items()}
    for name, values in {**rows, "mean over users": record["mean"]}.items():
        if name == "mean over users":
            table.add_section()
        cells = [values.get(f"{metric}@{column}") for column in columns for metric in ("sa", "ra")]
        table.add_row(name, *(percent(cell) for cell in cells))
    return table


def comparison_table(groups: Mapping[str, Sequence[Mapping[str, Any]]]) -> Table:
    """One row per method or setting: SA and RA in the mean over users, and RA and SA of each domain; ± over seeds."""
    first = next(iter(groups.values()))[0]
    table = Table(title="Comparison on the same federation", caption=caption(first))
    table.add_column("method", no_wrap=True)
    table.add_column("predicts")
    for column in ("SA", "RA"):
        table.add_column(column, justify="right", no_wrap=True)
    for domain in first["domains"]:
        table.add_column(f"{first['labels'].get(domain, domain)}\nSA / RA", justify="right")
    for name, records in groups.items():
        by_domain = [
            " / ".join(
                percent(fmean(record["domains"][domain][metric] for record in records)) for metric in ("sa", "ra")
            )
            for domain in first["domains"]
        ]
        overall = [spread([record["mean"][metric] for record in records]) for metric in ("sa", "ra")]
        table.add_row(name, predicts(records[0]), *overall, *by_domain)
    return table


def predicts(record: Mapping[str, Any]) -> str:
    """The branch that predicts, as the paper names it; networks with one set of statistics have no choice."""
    return BRANCH[record["predict"]] if "sa@noised" in record["mean"] else "its only BN"


def title(record: Mapping[str, Any]) -> str:
    """Method and data."""
    return f"{record['method']} on {record['data']}"


def caption(record: Mapping[str, Any]) -> str:
    """What the numbers mean: attack, ε, threat model, attacked branch, seed."""
    attack = record["attack"]
    eps = f"ε = {attack['eps'] * 255:g}/255" if "eps" in attack else ""
    steps = f"{attack['steps']} steps" if "steps" in attack else ""
    details = ", ".join(part for part in (attack["name"], eps, steps, f"threat model {attack['threat']}") if part)
    return (
        f"SA: accuracy on clean test images; RA: under attack ({details}) through {record['attacked']}. "
        f"In %, averaged over users. Seed {record['seed']}."
    )


def percent(value: float | None) -> str:
    """A share as a percentage, or nothing."""
    return "" if value is None else f"{100 * value:.1f}"


def spread(values: Sequence[float]) -> str:
    """Mean ± standard deviation over seeds, in percent; just the value for one seed."""
    if len(values) == 1:
        return percent(values[0])
    return f"{percent(fmean(values))} ± {percent(stdev(values))}"
