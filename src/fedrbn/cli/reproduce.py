"""fedrbn reproduce: the experiments of the paper by name."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from fedrbn.cli.output import console, echo, say
from fedrbn.cli.run import seed_numbers

if TYPE_CHECKING:
    from fedrbn.reproduce.running import TaskOutcome


def reproduce(
    name: Annotated[str | None, typer.Argument(help="An experiment; --list shows them.")] = None,
    scale: Annotated[
        Literal["smoke", "cpu", "full", "paper"],
        typer.Option(
            help="smoke: only tests that it runs; cpu: half the width and 64 images per user; full: the paper's size "
            "with a fifth of its rounds; paper: all of its rounds."
        ),
    ] = "cpu",
    seeds: Annotated[str, typer.Option(help="Seeds, separated by commas; the table shows mean ± std.")] = "1",
    threat: Annotated[
        Literal["pixel", "authors-release"],
        typer.Option(
            help="authors-release: computes as the released code does, only to compare with the printed numbers."
        ),
    ] = "pixel",
    data: Annotated[
        str | None,
        typer.Option(
            help="Use other data: digits-mini instead of digits, office-caltech10 instead of domainnet (the default "
            "if domainnet is not prepared), or domainnet."
        ),
    ] = None,
    only: Annotated[str, typer.Option(help="Run and show only cells with this text in PART/ROW/COLUMN.")] = "",
    out: Annotated[Path, typer.Option(help="Where to create the folder with the tables.")] = Path("results"),
    store: Annotated[Path, typer.Option(help="Store of runs; a run that it already holds is reused.")] = Path("runs"),
    workers: Annotated[int | None, typer.Option(min=1, help="Runs at a time; default: one per core.")] = None,
    no_run: Annotated[
        bool,
        typer.Option(
            "--no-run", help="Run nothing: write the tables from finished runs and leave the other cells empty."
        ),
    ] = False,
    keep: Annotated[
        bool,
        typer.Option(
            "--keep",
            help="Keep the numbers of the earlier table, if there is one, whose runs are not in the store; --only then "
            "limits what is run, not what is shown.",
        ),
    ] = False,
    list_: Annotated[
        bool, typer.Option("--list", help="Show all experiments, or the runs and times of NAME; run nothing.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Do not show progress.")] = False,
) -> None:
    """Run an experiment of the paper and print our numbers next to the paper's.

    Finished runs are reused and interrupted ones continue: repeat the command after a failure.
    """
    if list_:
        show_list() if name is None else show_times(name)
        return
    from fedrbn.config import ConfigError
    from fedrbn.reproduce import table_text
    from fedrbn.reproduce.by_name import reproduce_experiment

    if name is None:
        raise ConfigError("got no experiment; expected a name. fedrbn reproduce --list shows all.")
    made = reproduce_experiment(
        name,
        scale=scale,
        seeds=seed_numbers(seeds),
        threat=threat,
        data=data,
        only=only,
        out=out,
        store=store,
        workers=workers,
        run=not no_run,
        keep=keep,
        tell=partial(tell, quiet),
    )
    echo(table_text.markdown(made.table))
    say(f"wrote {made.folder}/table.md, table.csv and table.json")
    if made.failed:
        say(f"{made.failed} run(s) failed; their cells are empty or name the round. Repeat the command to continue")
        raise typer.Exit(1)


def tell(quiet: bool, number: int, total: int, outcome: TaskOutcome) -> None:
    """Print one line for a finished run; a failure is printed even if quiet."""
    experiment = outcome.task.experiment
    told = f"{number}/{total} {experiment.method.name} on {experiment.data.name} seed {experiment.run.seed}"
    say(told if outcome.error is None else f"{told} FAILED: {outcome.error}", quiet and outcome.error is None)


def show_list() -> None:
    """All experiments, and where they are in the paper. Nothing is computed, so the list appears immediately."""
    from rich.table import Table

    from fedrbn.reproduce import declarations

    table = Table(caption="fedrbn reproduce NAME --list shows the runs of an experiment and their time at each scale.")
    for column in ("name", "what", "in the paper"):
        table.add_column(column, overflow="fold")
    for name in declarations.names():
        declaration = declarations.read(name)
        table.add_row(name, declaration.title, declaration.place)
    console().print(table)


def show_times(name: str) -> None:
    """The runs of an experiment, and a rough time for each scale."""
    from rich.table import Table

    from fedrbn.cost.durations import duration
    from fedrbn.hardware import cores
    from fedrbn.reproduce import declarations, estimates, experiment_cells, running
    from fedrbn.reproduce.scales import SCALES

    used, declaration = cores(), declarations.read(name)
    table = Table(
        title=f"{name}: {declaration.title} ({declaration.place})",
        caption=f"Rough times for one seed on the {used} core(s) of this machine, from the paper's count of "
        f"multiply-accumulates at an assumed {estimates.MACS_PER_SECOND / 1e9:g} · 10⁹ per second and core. Runs that "
        "other experiments have finished take no time; extra attacks for evaluation take additional time. "
        "office-caltech10 replaces DomainNet unless DomainNet is prepared.",
    )
    for column in ("scale", "runs", "time", "what it is"):
        table.add_column(column, justify="right" if column in ("runs", "time") else "left")
    for scale, size in SCALES.items():
        cells = experiment_cells.cells(declaration, size)
        time = duration(estimates.seconds(cells) / used)
        table.add_row(scale, str(len(running.tasks(cells))), time, size.about)
    console().print(table)
