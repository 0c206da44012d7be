"""The command line: parse, call, print. PyTorch is imported only by the commands that need it, when they run."""

from __future__ import annotations

import errno
import sys
from pathlib import Path

import typer

from fedrbn.cli import (
    compare,
    cost,
    data,
    deploy,
    evaluate,
    export,
    figure,
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

app = typer.Typer(
    name="fedrbn",
    help="Federated Robustness Propagation: clients that can afford adversarial training make the others robust too.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for command in (
    run.run,
    evaluate.evaluate,
    compare.compare,
    settings.settings,
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
    "run": "; continue with fedrbn run --resume DIR",
    "compare": "; repeat the command to continue: finished runs are used again",
    "reproduce": "; repeat the command to continue: finished runs are used again",
}


def main() -> None:
    """Entry point: errors that a user can mend are one message on stderr, never a traceback."""
    sys.path.insert(0, str(Path.cwd()))  # so that package.module:object finds the user's own files
    try:
        app()
    except (ValueError, TypeError, RuntimeError, OSError) as error:
        if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
            error = _too_long(error)
        elif not raised_here(error):
            raise
        echo(f"error: {error}", err=True)
        sys.exit(2)
    except MemoryError:
        echo(
            "error: got something that needs more memory than there is; expected it to fit. Use fewer or smaller "
            "images, a smaller batch_size or model.width, or fewer workers.",
            err=True,
        )
        sys.exit(2)
    except SystemExit as end:
        if end.code == 130:  # typer's code for Ctrl-C
            echo(f"interrupted{_HOW_TO_CONTINUE.get(next(iter(sys.argv[1:]), ''), '')}", err=True)
        raise


def _too_long(error: OSError) -> ValueError:
    """Any command may be given such a name, wherever it first meets the file system."""
    return ValueError(
        f"got {error.filename!r}, a name that is too long for the file system; expected at most 255 bytes between two "
        "slashes. Choose a shorter one."
    )


def raised_here(error: Exception) -> bool:
    """Whether this package raised the error on purpose; one from inside a library is a bug and keeps its traceback."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    return frame is not None and str(frame.tb_frame.f_globals.get("__name__", "")).split(".")[0] == "fedrbn"
