"""The commands about data: list, preview, check, prepare."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedrbn.cli.output import console, echo, print_json, say
from fedrbn.errors import DataError

if TYPE_CHECKING:
    from fedrbn.data import Description
    from fedrbn.data.check import Report

app = typer.Typer(
    help="List, preview and check data sets; prepare downloads.", no_args_is_help=True, rich_markup_mode=None
)
Name = Annotated[str, typer.Argument(metavar="DATA", help="A data set, a folder, or package.module:object.")]
_MOST_LISTED = 20


@app.command("list")
def list_() -> None:
    """List data sets, their domains and sizes, and whether they are available here."""
    from rich.table import Table

    from fedrbn.data import AVAILABLE

    table = Table()
    for column in ("name", "domains", "train / test images per domain", "pixels", "available", "what it is"):
        table.add_column(column)
    for name, entry in AVAILABLE.items():
        sizes = ", ".join(
            f"{train} / {test}" for train, test in dict.fromkeys(zip(entry.train, entry.test, strict=True))
        )
        table.add_row(
            name,
            ", ".join(entry.domains),
            sizes or "as in the files",
            f"{entry.image_size}²",
            availability(name, entry),
            entry.summary,
        )
    console().print(table)


@app.command()
def preview(
    name: Name,
    out: Annotated[Path, typer.Option("--out", "-o", help="The image file to write.")] = Path("sheet.png"),
    image_size: Annotated[int | None, typer.Option(help="Side of the images in pixels.")] = None,
) -> None:
    """Write a contact sheet: a row of images for each domain."""
    from fedrbn import data
    from fedrbn.data.federation import pooled
    from fedrbn.data.preview import contact_sheet
    from fedrbn.data.samples import Federation

    loaded = data.load(name, image_size)
    contact_sheet(pooled(loaded, name) if isinstance(loaded, Federation) else loaded, out)
    echo(f"wrote {out}")


@app.command()
def check(
    name: Name,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON instead of tables.")] = False,
) -> None:
    """Count images by domain and class, and find broken files and images that are in both train and test.

    Exit code 1 if a file is broken, a test image is identical to a training image, or there is only one class.
    """
    from dataclasses import asdict

    from fedrbn.data.check import check as checked

    report = checked(name)
    if as_json:
        print_json({**asdict(report), "passed": report.passed})
    else:
        show_report(report)
    if not report.passed:
        raise typer.Exit(1)


@app.command()
def prepare(
    source: Annotated[Path | None, typer.Argument(help="The folder with the downloaded files (or one zip).")] = None,
    kind: Annotated[
        str | None, typer.Option("--as", help="The data set that the files belong to; --where lists the choices.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Where to write (default: $FEDRBN_DATA).")] = None,
    where: Annotated[bool, typer.Option("--where", help="Only print what to download and who owns it.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace existing files.")] = False,
) -> None:
    """Convert a published download into the files that fedrbn reads, with checksums."""
    if where:
        show_official()
        return
    if source is None or kind is None:
        raise DataError(
            "got no source or no --as; expected fedrbn data prepare FOLDER --as mnist. See fedrbn data prepare --where."
        )
    root = os.environ.get("FEDRBN_DATA")
    if out is None and not root:
        raise DataError("got neither --out nor FEDRBN_DATA; expected a folder to write to. Add -o FOLDER.")
    from fedrbn.data.prepare import prepare as prepared

    folder = out or Path(root or "").expanduser()
    for path in prepared(source, kind, folder, force=force):
        echo(f"wrote {path}")
    if not root or Path(root).expanduser().resolve() != folder.resolve():
        say(f"to use it: export FEDRBN_DATA={folder.resolve()}")


def show_official() -> None:
    """What can be prepared, and from which downloads."""
    from fedrbn.data.official import OFFICIAL

    for name, entry in OFFICIAL.items():
        echo(f"--as {name}: {entry.title}\n  by     {entry.owners}\n  from   {entry.where}")
        echo("  files  " + "\n         ".join(entry.files))


def show_report(report: Report) -> None:
    """The check as tables and lists."""
    from rich.table import Table

    from fedrbn.data.samples import LEAST_CLASSES

    counts = Table("class", *(domain.name for domain in report.domains), title=f"{report.name}: train / test images")
    for label in report.classes:
        counts.add_row(label, *(f"{domain.train[label]} / {domain.test[label]}" for domain in report.domains))
    totals = (f"{sum(domain.train.values())} / {sum(domain.test.values())}" for domain in report.domains)
    counts.add_section()
    counts.add_row("all", *totals)
    sizes = Table("domain", "width", "height", title="pixels: smallest, median, largest")
    for domain in report.domains:
        sizes.add_row(domain.name, *(f"{low}, {mid:g}, {high}" for low, mid, high in (domain.widths, domain.heights)))
    console().print(counts, sizes)
    missing = [f"{label} in {domain.name}" for domain in report.domains for label in domain.missing]
    pairs = {
        kind: [
            f"{pair.test} = {pair.train}" + f" (differs by {pair.difference:.1%})" * (pair.difference > 0)
            for pair in found
        ]
        for kind, found in (("test images that are training images", report.exact), ("near duplicates", report.near))
    }
    if len(report.filled) < LEAST_CLASSES:
        echo(f"got training images of {len(report.filled)} class; expected at least two. Add a class.")
    listed = {
        "classes without images": missing,
        "broken files": [*report.broken],
        "ignored files": [*report.ignored],
        **pairs,
    }
    for title, lines in listed.items():
        echo(f"{title}: {len(lines) or 'none'}")
        for line in lines[:_MOST_LISTED]:
            echo(f"  {line}")
        if len(lines) > _MOST_LISTED:
            echo(f"  and {len(lines) - _MOST_LISTED} more (--json has all)")


def availability(name: str, entry: Description) -> str:
    """Whether a data set is available here."""
    if not entry.needs_files:
        return "yes, embedded"
    root = os.environ.get("FEDRBN_DATA")
    if not root:
        return "no: set FEDRBN_DATA"
    there = (Path(root).expanduser() / name.replace("-", "_")).is_dir()
    return "yes, in FEDRBN_DATA" if there else "no: not in FEDRBN_DATA"
