"""The command line: parse, call, print. PyTorch is imported only by the commands that need it, when they run."""

from __future__ import annotations

import errno
import io
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer
import typer.core

from fedrbn import __version__
from fedrbn.cli import (
    compare,
    cost,
    data,
    demo,
    deploy,
    evaluate,
    export,
    figure,
    new,
    onboard,
    plan,
    predict,
    probe,
    report,
    reproduce,
    run,
    settings,
    watch,
)
from fedrbn.cli.output import echo
from fedrbn.errors import FedRBNError


def _print_version(wanted: bool) -> None:
    if wanted:
        echo(f"fedrbn {__version__}")
        raise typer.Exit


app = typer.Typer(
    name="fedrbn",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Federated Robustness Propagation: clients that can afford adversarial training make the others robust too."""


for command in (
    demo.demo,
    run.run,
    evaluate.evaluate,
    compare.compare,
    settings.settings,
    new.new,
    export.export,
    predict.predict,
    onboard.onboard,
    probe.probe,
    plan.plan,
    cost.cost,
    reproduce.reproduce,
    report.report,
    figure.figure,
    watch.watch,
):
    app.command()(command)
app.add_typer(data.app, name="data")
app.add_typer(deploy.app, name="deploy")


_HOW_TO_CONTINUE = {
    "compare": "repeat the command to continue: finished runs are reused",
    "demo": "repeat the command to continue: finished runs are reused",
    "reproduce": "repeat the command to continue: finished runs are reused",
}


def main() -> None:
    """Entry point: an error that a user can fix is one message on stderr, never a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # not every terminal can print ε
    sys.path.insert(0, str(Path.cwd()))  # so that package.module:object finds files in the current folder
    typer.core.HAS_RICH = False  # typer escapes brackets for rich even if it prints plain help: \[default: 9092]
    try:
        app()
    except FedRBNError as error:
        _end(str(error))
    except OSError as error:
        if error.errno == errno.ENOSPC and error.filename is None:  # standard output is a file on a full disk
            _end("got no space for the output; expected a disk with free space. Free some, and repeat the command.")
        if error.errno != errno.ENAMETOOLONG:
            raise
        _end(  # any command may get such a name, and fails where it first uses it
            f"got {error.filename!r}, a name that is too long for the file system; expected at most 255 bytes between "
            "two slashes. Choose a shorter one."
        )
    except MemoryError:
        _end(
            "got a task that needs more memory than this machine has; expected it to fit. Use fewer or smaller images, "
            "a smaller batch_size or model.width, or fewer workers."
        )
    except SystemExit as end:
        if end.code == 130:  # typer's code for Ctrl-C
            how = _said(end) or _HOW_TO_CONTINUE.get(next(iter(sys.argv[1:]), ""), "")
            echo(f"interrupted; {how}" if how else "interrupted", err=True)
        raise


def _said(end: BaseException | None) -> str:
    """The message of the interruption that ended the program; empty if it has none."""
    while end is not None and not isinstance(end, KeyboardInterrupt):
        end = end.__cause__ or end.__context__
    return "" if end is None else str(end)


def _end(message: str) -> NoReturn:
    """Print an error that the user can fix, and exit."""
    echo(f"error: {message}", err=True)
    sys.exit(2)
