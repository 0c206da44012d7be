"""fedrbn figure: the paper's figures from our results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from fedrbn.cli.output import console, echo
from fedrbn.cli.run import seed_numbers


def figure(
    name: Annotated[str | None, typer.Argument(help="A figure; --list shows them.")] = None,
    results: Annotated[Path, typer.Option(help="The folder with the tables of fedrbn reproduce.")] = Path("results"),
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="FILE.svg and FILE.png are written (default: figures/NAME).")
    ] = None,
    scale: Annotated[Literal["smoke", "cpu", "full", "paper"], typer.Option(help="As for reproduce.")] = "cpu",
    seeds: Annotated[str | None, typer.Option(help="Only these seeds, separated by commas; default: all.")] = None,
    threat: Annotated[Literal["pixel", "authors-release"], typer.Option(help="As for reproduce.")] = "pixel",
    data: Annotated[
        str | None, typer.Option(help="As for reproduce; for samples the data set, a folder, or package.module:object.")
    ] = None,
    store: Annotated[Path, typer.Option(help="Store of runs, as for reproduce.")] = Path("runs"),
    run: Annotated[
        list[Path] | None, typer.Option(help="A run directory to draw instead of the experiment's; repeat for several.")
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="Show all figures and what they are drawn from.")] = False,
) -> None:
    """Draw a figure of the paper from our results, as SVG and PNG.

    Cells that were not run are left out, and the figure says so. The paper's numbers are marked as such.
    """
    from fedrbn.config import ConfigError
    from fedrbn.figures import catalogue
    from fedrbn.figures.sources import Request
    from fedrbn.reproduce import experiment_cells

    if list_:
        show_figures()
        return
    if name is None:
        raise ConfigError("got no figure; expected a name. fedrbn figure --list shows all.")
    entry = catalogue.find(name)
    request = Request(
        table=results / experiment_cells.folder_name(entry.experiment, scale, threat, data) / "table.json",
        store=store,
        scale=scale,
        threat=threat,
        data=data,
        seeds=None if seeds is None else tuple(seed_numbers(seeds)),
        runs=tuple(run or ()),
    )
    for path in catalogue.draw(entry, request, out or Path("figures") / name):
        echo(f"wrote {path}")


def show_figures() -> None:
    """All figures, where they are in the paper, and what they are drawn from."""
    from rich.table import Table

    from fedrbn.figures.catalogue import FIGURES

    table = Table("name", "what", "in the paper", "drawn from")
    for name, entry in FIGURES.items():
        table.add_row(name, entry.title, entry.place, entry.needs)
    console().print(table)
