"""fedrbn cost: what an experiment costs, before it runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from fedrbn.cli.output import console, echo, print_json, say
from fedrbn.cli.run import Settings, read_settings

if TYPE_CHECKING:
    from fedrbn.cost.paper import Cell

TERA = 1e12
MEGA = 1e6
BENCHMARK = "benchmark"


def cost(
    subject: Annotated[str, typer.Argument(metavar="CONFIG|EXPERIMENT", help="A TOML file of settings, or benchmark.")],
    scale: Annotated[
        Literal["paper"] | None,
        typer.Option(help="paper: the paper's sizes instead of those of our files; benchmark has no others."),
    ] = None,
    settings: Settings = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """MACs per epoch, as the paper counts and as they are executed, and bytes per round and client. Needs no images."""
    from fedrbn.config import ConfigError

    if subject != BENCHMARK:
        if not Path(subject).is_file():
            raise ConfigError(f"got {subject!r}; expected a TOML file of settings, or {BENCHMARK}, the paper's table.")
        found = cost_of_config(Path(subject), settings, scale)
        print_json(found) if as_json else show_cost(found)
        return
    if settings:
        raise ConfigError("got --set with benchmark, whose settings are the paper's; expected a TOML file of settings.")
    from fedrbn.cost.paper import benchmark, free_at_total

    say("counting; AlexNet takes some seconds", quiet=as_json)
    cells, free = list(benchmark()), free_at_total()
    print_json(benchmark_values(cells, free)) if as_json else show_benchmark(cells, free)


def cost_of_config(path: Path, settings: list[str] | None, scale: Literal["paper"] | None) -> dict[str, Any]:
    """The cost of the experiment in a file, with settings on top."""
    from fedrbn import config
    from fedrbn.cost import count as costs

    chosen = read_settings(settings)
    swept = next((f"{section}.{key}" for section, key, values in chosen if len(values) > 1), None)
    if swept is not None:
        raise config.ConfigError(f"got several values for {swept}; expected one. Ask for one cost at a time.")
    values = config.with_settings(config.read(path), [(section, key, given[0]) for section, key, given in chosen])
    return costs.cost(config.make(values), scale)


def show_cost(found: dict[str, Any]) -> None:
    """The cost of one experiment as a table of roles and a few lines."""
    from rich.table import Table

    table = Table(title="One client, by role")
    table.add_column("role")
    for column in ("MMACs per image\npaper", "MMACs per image\nactual", "MB per round\ndown", "MB per round\nup"):
        table.add_column(column, justify="right")
    for role, image in found["macs_per_image"].items():
        moved = found["bytes"]["client"][role]
        numbers = (image["paper"], image["actual"], moved["down"], moved["up"])
        table.add_row(role, *(f"{number / MEGA:,.2f}" for number in numbers))
    console().print(table)
    for count, macs in found["macs_per_epoch"].items():
        total = found["macs_total"][count]
        echo(f"{count:7} {macs / TERA:.4g} ×10¹² MACs per epoch of all clients, {total / TERA:.4g} in all rounds")
    moved = found["bytes"]["round"]
    echo(f"traffic {moved['down'] / MEGA:,.1f} MB down and {moved['up'] / MEGA:,.1f} MB up per round, all clients")


def benchmark_values(cells: list[Cell], free: int) -> dict[str, Any]:
    """The benchmark's costs as JSON values."""
    from dataclasses import asdict

    return {"cells": [asdict(cell) for cell in cells], "free_at_total": {"digits": {"paper": free}}}


def show_benchmark(cells: list[Cell], free: int) -> None:
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
