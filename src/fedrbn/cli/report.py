"""fedrbn report: runs and reproduced tables as one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedrbn.cli.output import say


def report(
    directories: Annotated[
        list[Path], typer.Argument(help="Run directories, stores of runs, or folders made by fedrbn reproduce.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write; an existing one is replaced.")] = Path(
        "report.html"
    ),
    images: Annotated[
        bool, typer.Option(help="Show clean and adversarial images, recomputed from checkpoint and data.")
    ] = True,
    checks: Annotated[
        bool, typer.Option(help="Run the check-list where fedrbn evaluate has not; needs the data.")
    ] = True,
) -> None:
    """Write one self-contained page: settings, accuracies, convergence, cost, donors, images, comparisons.

    It opens from disk and loads nothing from the network.
    """
    from fedrbn.report import write_report

    say(f"wrote {write_report(directories, out, images=images, checks=checks, announce=say)}")
