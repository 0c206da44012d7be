"""The commands about data: list, preview."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedrbn.cli.output import console

if TYPE_CHECKING:
    from fedrbn.data import Description

app = typer.Typer(help="Look at the data sets.", no_args_is_help=True, rich_markup_mode=None)


@app.command("list")
def list_() -> None:
    """Data sets, their domains and sizes, and whether they can be used here."""
    from rich.table import Table

    from fedrbn.data import AVAILABLE

    table = Table()
    for column in ("name", "domains", "train / test images per domain", "pixels", "available", "what it is"):
        table.add_column(column)
    for name, entry in AVAILABLE.items():
        sizes = ", ".join(
            f"{train} / {test}" for train, test in dict.fromkeys(zip(entry.train, entry.test, strict=True))
        )
        table.add_row(name, ", ".join(entry.domains), sizes, f"{entry.image_size}²", availability(entry), entry.summary)
    console().print(table)


@app.command()
def preview(
    name: Annotated[str, typer.Argument(help="A data set, a folder, or package.module:object.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The picture to write.")] = Path("sheet.png"),
    image_size: Annotated[int | None, typer.Option(help="Side of the images in pixels.")] = None,
) -> None:
    """Write a contact sheet: a strip of images for each domain."""
    from fedrbn import data
    from fedrbn.data.preview import contact_sheet

    contact_sheet(data.load(name, image_size), out)
    typer.echo(f"wrote {out}")


def availability(entry: Description) -> str:
    """Whether a data set can be used here."""
    if not entry.needs_files:
        return "yes, embedded"
    return "yes, FEDRBN_DATA is set" if os.environ.get("FEDRBN_DATA") else "no: set FEDRBN_DATA"
