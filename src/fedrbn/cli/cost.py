"""fedrbn cost: predict the cost of an experiment before it runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from fedrbn.builtin.shipped import SHIPPED
from fedrbn.cli.output import console, echo, print_json, say
from fedrbn.cli.run import DataName, MethodName, Settings, given, read_settings, refuse_contradictions

if TYPE_CHECKING:
    from fedrbn.cost.paper import BenchmarkCost

TERA = 1e12
MEGA = 1e6
BENCHMARK = "benchmark"


def cost(
    subject: Annotated[
        str | None, typer.Argument(metavar="CONFIG|EXPERIMENT", help="A TOML file of settings, or benchmark.")
    ] = None,
    method: MethodName = None,
    data: DataName = None,
    scale: Annotated[
        Literal["paper"] | None,
        typer.Option(help="paper: count with the paper's data sizes instead of ours; benchmark always does."),
    ] = None,
    settings: Settings = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Count MACs per epoch, the paper's way and as executed, and bytes per round and client. Needs no images."""
    from fedrbn.config import ConfigError

    if subject != BENCHMARK:
        if subject is None and not (method or data or settings):
            raise ConfigError(
                f"got nothing to count; expected --data, --method, --set, a TOML file of settings, or {BENCHMARK}, the "
                "paper's table."
            )
        if subject is not None and subject not in SHIPPED and not Path(subject).is_file():
            raise ConfigError(
                f"got {subject!r}; expected a TOML file of settings, one of {', '.join(SHIPPED)}, or {BENCHMARK}, the "
                "paper's table."
            )
        named = {"method.name": method, "data.name": data}
        found = cost_of_config(Path(subject) if subject else None, named, settings, scale)
        print_json(found) if as_json else show_cost(found)
        return
    if settings or method or data:
        raise ConfigError(
            "got --set, --method or --data with benchmark, which always uses the paper's settings; expected benchmark "
            "alone, or a TOML file of settings."
        )
    from fedrbn.cost.paper import benchmark, free_at_total

    say("counting; AlexNet takes a few seconds", quiet=as_json)
    cells, free = list(benchmark()), free_at_total()
    print_json(benchmark_values(cells, free)) if as_json else show_benchmark(cells, free)


def cost_of_config(
    path: Path | None, named: dict[str, Any], settings: list[str] | None, scale: Literal["paper"] | None
) -> dict[str, Any]:
    """The cost of the experiment in a file, if there is one, with options and settings on top."""
    from fedrbn import config
    from fedrbn.cost import count as costs

    chosen = read_settings(settings)
    refuse_contradictions(named, chosen)
    swept = next((f"{section}.{key}" for section, key, values in chosen if len(values) > 1), None)
    if swept is not None:
        raise config.ConfigError(f"got several values for {swept}; expected one. Count one experiment at a time.")
    values = config.with_settings(
        config.read(path) if path else {},
        [*((section, key, values[0]) for section, key, values in chosen), *given(named)],
    )
    return costs.cost(config.make(values), scale)


def show_cost(found: dict[str, Any]) -> None:
    """The cost of one experiment as a table of duties and a few lines."""
    from rich.table import Table

    table = Table(title="One client, by duty")
    table.add_column("duty")
    for column in ("MMACs per image\npaper", "MMACs per image\nactual", "MB per round\ndown", "MB per round\nup"):
        table.add_column(column, justify="right")
    for duty, image in found["macs_per_image"].items():
        moved = found["bytes"]["client"][duty]
        numbers = (image["paper"], image["actual"], moved["down"], moved["up"])
        table.add_row(duty, *(f"{number / MEGA:,.2f}" for number in numbers))
    console().print(table)
    for count, macs in found["macs_per_epoch"].items():
        total = found["macs_total"][count]
        echo(f"{count:7} {macs / TERA:.4g} ×10¹² MACs per epoch of all clients, {total / TERA:.4g} in all rounds")
    moved = found["bytes"]["round"]
    echo(f"traffic {moved['down'] / MEGA:,.1f} MB down and {moved['up'] / MEGA:,.1f} MB up per round, all clients")


def benchmark_values(cells: list[BenchmarkCost], free: int) -> dict[str, Any]:
    """The benchmark's costs as JSON values."""
    from dataclasses import asdict

    return {"cells": [asdict(cell) for cell in cells], "free_at_total": {"digits": {"paper": free}}}


def show_benchmark(cells: list[BenchmarkCost], free: int) -> None:
    """The cost column of the benchmark table, both data sets side by side."""
    from rich.table import Table

    table = Table(title="10¹² MACs per epoch at the paper's size")
    table.add_column("AT users")
    table.add_column("λ", justify="right")
    for data in ("Digits", "DomainNet"):
        for count in ("paper", "actual"):
            table.add_column(f"{data}\n{count}", justify="right")
    left, right = ([cell for cell in cells if cell.data == data] for data in ("digits", "domainnet"))
    for digits, domainnet in zip(left, right, strict=True):
        users = digits.at if digits.at == domainnet.at else f"{digits.at} / {domainnet.at}"
        numbers = [cell.macs_per_epoch[count] for cell in (digits, domainnet) for count in ("paper", "actual")]
        lam = "" if digits.lam is None else f"{digits.lam:g}"
        table.add_row(users, lam, *(f"{n / TERA:.{2 if n < 10 * TERA else 1}f}" for n in numbers))
    console().print(table)
    echo(f"Free AT by all users of Digits, all epochs, paper's count: {free / TERA:.1f} ×10¹² MACs")
