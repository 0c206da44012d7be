"""fedrbn reproduce: the experiments of the paper by name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from fedrbn.cli.output import console, echo, say
from fedrbn.cli.run import seed_numbers

if TYPE_CHECKING:
    from fedrbn.reproduce.declarations import Declaration
    from fedrbn.reproduce.experiment_cells import Cell, Threat


def reproduce(
    name: Annotated[str | None, typer.Argument(help="An experiment; --list shows them.")] = None,
    scale: Annotated[
        Literal["smoke", "cpu", "full", "paper"],
        typer.Option(
            help="smoke: the wiring; cpu: half the width and 64 images per user; full: the paper's size in a fifth of "
            "its rounds; paper: all of its rounds."
        ),
    ] = "cpu",
    seeds: Annotated[str, typer.Option(help="Seeds, separated by commas; the table shows mean ± std.")] = "1",
    threat: Annotated[
        Literal["pixel", "authors-release"],
        typer.Option(help="authors-release: the released code's arithmetic, only to compare with printed figures."),
    ] = "pixel",
    data: Annotated[
        str | None,
        typer.Option(
            help="Run on this in place of the data it can stand in for: digits-mini (digits), office-caltech10 "
            "(domainnet; the default where domainnet is not prepared), or domainnet."
        ),
    ] = None,
    only: Annotated[str, typer.Option(help="Only cells with this text in PART/ROW/COLUMN, in the table as well.")] = "",
    out: Annotated[Path, typer.Option(help="Where the folder with the tables is made.")] = Path("results"),
    store: Annotated[Path, typer.Option(help="Store of runs; a run that is there already is used.")] = Path("runs"),
    workers: Annotated[int | None, typer.Option(min=1, help="Runs at a time; default one per core.")] = None,
    no_run: Annotated[
        bool, typer.Option("--no-run", help="Run nothing: write the tables of what is finished, the rest empty.")
    ] = False,
    list_: Annotated[bool, typer.Option("--list", help="Show all experiments with rough times; run nothing.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
) -> None:
    """Run an experiment of the paper and print our numbers beside the paper's.

    Runs that are finished are used again and interrupted ones continue: repeat the command after a failure.
    """
    if list_:
        show_list()
        return
    from fedrbn.config import ConfigError
    from fedrbn.hardware import cores
    from fedrbn.reproduce import declarations, experiment_cells, table
    from fedrbn.reproduce.scales import SCALES

    if name is None:
        raise ConfigError("got no experiment; expected a name. fedrbn reproduce --list shows all.")
    declaration = declarations.read(name)
    numbers = seed_numbers(seeds)
    cells = experiment_cells.cells(declaration, SCALES[scale], numbers, threat=threat, data=data, only=only)
    failed = 0
    if not no_run:
        experiment_cells.check_data(cells)
        failed = complete(declaration, cells, store, workers or cores(), SCALES[scale].subset, quiet)
    filled = replace(
        table.fill(declaration, cells, store, SCALES[scale], threat, numbers),
        command=experiment_cells.command(name, scale, numbers, threat=threat, data=data, only=only),
    )
    folder = out / folder_name(name, scale, threat, data)
    table.write(filled, folder)
    echo(table.markdown(filled))
    say(f"wrote {folder}/table.md, table.csv and table.json")
    if failed:
        say(f"{failed} run(s) failed: their cells are empty or name the round; repeat the command to continue them")
        raise typer.Exit(1)


def folder_name(name: str, scale: str, threat: Threat, data: str | None) -> str:
    """The folder of a table: what differs from the usual is part of its name."""
    return "-".join([name, scale, *([threat] if threat != "pixel" else []), *([data] if data else [])])


def complete(declaration: Declaration, cells: list[Cell], store: Path, workers: int, subset: int, quiet: bool) -> int:
    """Complete the runs, telling of each; returns how many failed."""
    from fedrbn.reproduce import running

    todo = running.tasks(cells)
    say(f"{declaration.title}: {len(todo)} run(s), {workers} at a time; finished ones are in {store}", quiet)
    failed = 0
    for number, outcome in enumerate(running.complete(todo, store, workers, subset), start=1):
        experiment = outcome.task.experiment
        told = f"{number}/{len(todo)} {experiment.method.name} on {experiment.data.name} seed {experiment.run.seed}"
        say(told if outcome.error is None else f"{told} FAILED: {outcome.error}", quiet and outcome.error is None)
        failed += outcome.error is not None
    return failed


def show_list() -> None:
    """All experiments, where they are in the paper, their runs, and a rough time for each scale."""
    from rich.table import Table

    from fedrbn.cost.durations import duration
    from fedrbn.hardware import cores
    from fedrbn.reproduce import declarations, estimates, experiment_cells, running
    from fedrbn.reproduce.scales import SCALES

    used = cores()
    table = Table(
        caption=f"Times for one seed on the {used} core(s) here, from the paper's count of multiply-accumulates at an "
        f"assumed {estimates.MACS_PER_SECOND / 1e9:g} · 10⁹ per second and core: rough. Runs that other experiments "
        "have made already take no time; the attacks of `attacks` come on top. DomainNet is office-caltech10 unless it "
        "is prepared."
    )
    for column in ("name", "what", "in the paper"):
        table.add_column(column, overflow="fold")
    for column in ("runs", *SCALES):
        table.add_column(column, justify="right", no_wrap=True)
    for name in declarations.names():
        declaration = declarations.read(name)
        by_scale = {scale: experiment_cells.cells(declaration, size) for scale, size in SCALES.items()}
        times = [duration(estimates.seconds(cells) / used) for cells in by_scale.values()]
        table.add_row(name, declaration.title, declaration.place, str(len(running.tasks(by_scale["paper"]))), *times)
    console().print(table)
