"""fedrbn demo: FedRBN and a baseline on the embedded digits, with a report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedrbn.cli.compare import compare
from fedrbn.cli.run import AsJson, Methods, Quiet, Rounds, Settings, Workers


def demo(
    methods: Methods = "fedrbn,fatbn",
    rounds: Rounds = None,
    out: Annotated[Path, typer.Option(help="Folder for the runs and report.html.")] = Path("runs/demo"),
    workers: Workers = None,
    settings: Settings = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Train FedRBN and FATBN on the embedded digits, print their accuracies, and write a report.

    Needs no data and no settings: it uses the shipped settings file `demo`.
    """
    compare(
        Path("demo"),
        methods,
        rounds=rounds,
        out=out,
        workers=workers,
        settings=settings,
        report=out / "report.html",
        as_json=as_json,
        quiet=quiet,
    )
