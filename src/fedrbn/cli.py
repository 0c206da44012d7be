"""The command line: parse, call, print. PyTorch is imported only by the commands that need it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(
    name="fedrbn",
    help="Federated Robustness Propagation: clients that can afford adversarial training make the others robust too.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
data_app = typer.Typer(help="Look at the data sets.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(data_app, name="data")

ConfigFile = Annotated[Path | None, typer.Argument(help="A TOML file of settings; what it leaves out has defaults.")]
DataName = Annotated[
    str | None,
    typer.Option("--data", help="digits-mini, digits, office-caltech10, a folder, or package.module:object."),
]
Rounds = Annotated[int | None, typer.Option("--rounds", help="Communication rounds (train.rounds).")]
Workers = Annotated[int | None, typer.Option("--workers", help="Worker processes; 1 trains in this process.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", help="Any setting as section.key=value; repeat for several.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the record as JSON instead of a table.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]


@app.command()
def run(
    config_file: ConfigFile = None,
    method: Annotated[
        str | None, typer.Option(help="fedrbn, fatavg, fatprox, fatbn, fatavg+dbn, or package.module:object.")
    ] = None,
    data: DataName = None,
    rounds: Rounds = None,
    seed: Annotated[int | None, typer.Option(help="Decides all randomness.")] = None,
    out: Annotated[Path | None, typer.Option(help="Run directory (default: runs/METHOD-KEY).")] = None,
    workers: Workers = None,
    settings: Settings = None,
    resume: Annotated[Path | None, typer.Option(help="Continue an interrupted run in this directory.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a run that is already in the directory.")] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Train one method on one federation, choose the best round on validation data, evaluate every client."""
    from fedrbn import config, runs
    from fedrbn.config import ConfigError

    if resume is not None:
        given = [config_file, method, data, rounds, seed, out, settings]
        if any(value is not None for value in given) or force:
            raise ConfigError(
                "got --resume with other settings; expected --resume DIR alone (with --workers at most): a resumed "
                "run keeps the settings it was started with."
            )
        with _watcher(str(resume), quiet) as watcher:
            _show(runs.resume(resume, workers=workers, watcher=watcher), resume, as_json)
        return
    named = {"method.name": method, "data.name": data, "train.rounds": rounds, "run.seed": seed, "run.workers": workers}
    fixed = _settings(settings)
    swept = next((f"{section}.{key}" for section, key, values in fixed if len(values) > 1), None)
    if swept is not None:
        raise ConfigError(f"got several values for {swept}; expected one. To sweep over them use fedrbn compare.")
    values = config.with_settings(
        config.read(config_file) if config_file else {},
        [*_given(named), *((section, key, chosen[0]) for section, key, chosen in fixed)],
    )
    experiment = config.make(values)
    directory = out or Path(experiment.run.out or f"runs/{_safe(experiment.method.name)}-{experiment.key()}")
    with _watcher(experiment.method.name, quiet) as watcher:
        record = runs.run(experiment, directory, force=force, watcher=watcher)
    _show(record, directory, as_json)


@app.command()
def evaluate(
    directory: Annotated[Path, typer.Argument(help="A directory made by fedrbn run.")],
    workers: Workers = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Evaluate a finished run again: SA and RA of every client, per domain and in the mean."""
    from fedrbn import runs

    with _watcher("evaluate", quiet) as watcher:
        record = runs.evaluate(directory, workers=workers, watcher=watcher)
    _show(record, directory, as_json)


@app.command()
def compare(
    config_file: ConfigFile = None,
    methods: Annotated[str, typer.Option(help="Methods, separated by commas.")] = "fedrbn,fatbn,fatavg",
    seeds: Annotated[str, typer.Option(help="Seeds, separated by commas; the table shows mean ± std.")] = "1",
    data: DataName = None,
    rounds: Rounds = None,
    out: Annotated[Path, typer.Option(help="Store of runs; a run that is there already is used, not repeated.")] = Path(
        "runs"
    ),
    workers: Workers = None,
    settings: Settings = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Run several methods on the same federation and seeds and print one table.

    Comma lists in --set make a sweep: --set method.lam=0,0.5,1. Interrupted comparisons continue where they stopped.
    """
    from fedrbn import config, sweep
    from fedrbn.tables import comparison_table

    named = {"data.name": data, "train.rounds": rounds, "run.workers": workers}
    values = config.with_settings(config.read(config_file) if config_file else {}, _given(named))
    todo = sweep.cells(values, _listed(methods), _settings(settings), _numbers(seeds))
    groups: dict[str, list[dict[str, Any]]] = {}
    _say(f"{len(todo)} run(s); those finished before are in {out}", quiet)
    for cell in todo:
        with _watcher(f"{cell.row} seed {cell.experiment.run.seed}", quiet) as watcher:
            groups.setdefault(cell.row, []).append(sweep.complete(cell, out, watcher))
    if as_json:
        _print_json(groups)
    else:
        _console().print(comparison_table(groups))


@data_app.command("list")
def data_list() -> None:
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
        table.add_row(
            name, ", ".join(entry.domains), sizes, f"{entry.image_size}²", _availability(entry), entry.summary
        )
    _console().print(table)


@data_app.command("preview")
def data_preview(
    name: Annotated[str, typer.Argument(help="A data set, a folder, or package.module:object.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The picture to write.")] = Path("sheet.png"),
    image_size: Annotated[int | None, typer.Option(help="Side of the images in pixels.")] = None,
) -> None:
    """Write a contact sheet: a strip of images for each domain."""
    from fedrbn import data
    from fedrbn.data.preview import contact_sheet

    contact_sheet(data.load(name, image_size), out)
    typer.echo(f"wrote {out}")


def main() -> None:
    """Entry point: errors that a user can mend are one message on stderr, never a traceback."""
    sys.path.insert(0, str(Path.cwd()))  # so that package.module:object finds the user's own files
    try:
        app()
    except (ValueError, TypeError, RuntimeError, OSError) as error:
        if not _ours(error):
            raise
        typer.echo(f"error: {error}", err=True)
        sys.exit(2)
    except SystemExit as end:
        if end.code == 130:  # typer's code for Ctrl-C
            typer.echo("interrupted; continue with fedrbn run --resume DIR", err=True)
        raise


def _ours(error: Exception) -> bool:
    """Whether the error was raised by this package on purpose, not by a bug in it or in a library."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    return frame is not None and "fedrbn" in str(frame.tb_frame.f_globals.get("__name__", ""))


def _given(named: dict[str, Any]) -> list[tuple[str, str, Any]]:
    """The options that were given, as (section, key, value)."""
    return [(*name.split("."), value) for name, value in named.items() if value is not None]


def _settings(texts: list[str] | None) -> list[tuple[str, str, list[Any]]]:
    from fedrbn.config import parse_setting

    return [parse_setting(text) for text in texts or []]


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _numbers(text: str) -> list[int]:
    from fedrbn.config import ConfigError

    try:
        return [int(part) for part in _listed(text)]
    except ValueError:
        raise ConfigError(f"got --seeds {text!r}; expected whole numbers separated by commas, such as 1,2,3") from None


def _safe(name: str) -> str:
    return name.replace(":", ".").replace("/", ".")


def _availability(entry: Any) -> str:
    import os

    if not entry.needs_files:
        return "yes, embedded"
    return "yes, FEDRBN_DATA is set" if os.environ.get("FEDRBN_DATA") else "no: set FEDRBN_DATA"


def _console(*, err: bool = False) -> Any:
    from rich.console import Console

    plain = Console(stderr=err)
    return plain if plain.is_terminal else Console(stderr=err, width=140)  # files and pipes have no width of their own


def _say(text: str, quiet: bool) -> None:
    if not quiet:
        typer.echo(text, err=True)


def _watcher(title: str, quiet: bool) -> Any:
    """A progress display as a context manager; nothing when quiet."""
    from contextlib import nullcontext

    from fedrbn.progress import Display

    return nullcontext() if quiet else Display(_console(err=True), title)


def _show(record: dict[str, Any], directory: Path, as_json: bool) -> None:
    from fedrbn.tables import evaluation_table

    if as_json:
        _print_json(record)
        return
    _console().print(evaluation_table(record))
    typer.echo(f"run directory: {directory}", err=True)


def _print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=1))
