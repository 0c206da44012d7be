"""The commands that train: run one method, compare several."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from fedrbn.builtin import alternatives
from fedrbn.builtin.data_sets import AVAILABLE
from fedrbn.builtin.methods import METHODS
from fedrbn.builtin.shipped import SHIPPED
from fedrbn.cli.output import listed, show, watching

if TYPE_CHECKING:
    from fedrbn.runs.tracking import TensorBoard


ConfigFile = Annotated[
    Path | None,
    typer.Argument(
        help=f"A TOML file of settings, or the name of a shipped one: {', '.join(SHIPPED)}. Other settings keep their "
        "defaults."
    ),
]

DataName = Annotated[
    str | None,
    typer.Option("--data", help=f"{alternatives(AVAILABLE, 'a folder')}."),
]

MethodName = Annotated[str | None, typer.Option("--method", help=f"{alternatives(METHODS)}.")]

Methods = Annotated[str, typer.Option(help=f"Methods, separated by commas: {alternatives(METHODS)}.")]

Rounds = Annotated[int | None, typer.Option("--rounds", help="Communication rounds (train.rounds).")]

Workers = Annotated[int | None, typer.Option("--workers", help="Worker processes; 1 trains in this process.")]

Settings = Annotated[
    list[str] | None, typer.Option("--set", help="Any setting as section.key=value; repeat for several.")
]

Track = Annotated[
    Literal["tensorboard"] | None,
    typer.Option(
        "--track", help="tensorboard: also log every round for TensorBoard, in the folder tensorboard of the run."
    ),
]

AsJson = Annotated[bool, typer.Option("--json", help="Print the record as JSON instead of a table.")]

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Do not show progress.")]


def run(
    config_file: ConfigFile = None,
    method: MethodName = None,
    data: DataName = None,
    rounds: Rounds = None,
    seed: Annotated[int | None, typer.Option(help="Seed of all randomness.")] = None,
    out: Annotated[Path | None, typer.Option(help="Run directory (default: runs/METHOD-λ-SEED-KEY).")] = None,
    workers: Workers = None,
    settings: Settings = None,
    resume: Annotated[
        Path | None,
        typer.Option(help="Continue an interrupted run in this directory; with --rounds also a finished one."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a run that is already in the directory.")] = False,
    track: Track = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Train one method on one federation, choose the best round on validation data, evaluate every client."""
    from fedrbn import config
    from fedrbn.config import ConfigError
    from fedrbn.federated.options import resolved
    from fedrbn.runs import train
    from fedrbn.runs.store import run_folder

    if resume is not None:
        others = [config_file, method, data, seed, out, settings]
        if any(value is not None for value in others) or force:
            raise ConfigError(
                "got --resume with other settings; expected --resume DIR with only --rounds, --workers or --track: a "
                "resumed run keeps the settings it was started with."
            )
        with continuable(resume), watching(str(resume), quiet, *trackers(track, resume)) as watcher:
            show(train.resume(resume, rounds=rounds, workers=workers, watcher=watcher), resume, as_json)
        return
    named = {"method.name": method, "data.name": data, "train.rounds": rounds, "run.seed": seed, "run.workers": workers}
    fixed = read_settings(settings)
    refuse_contradictions(named, fixed)
    swept = next((f"{section}.{key}" for section, key, values in fixed if len(values) > 1), None)
    if swept is not None:
        raise ConfigError(f"got several values for {swept}; expected one. To sweep over them use fedrbn compare.")
    values = config.with_settings(
        config.read(config_file) if config_file else {},
        [*((section, key, chosen[0]) for section, key, chosen in fixed), *given(named)],
    )
    experiment = resolved(config.make(values))
    directory = out or (Path(experiment.run.out) if experiment.run.out else run_folder(Path("runs"), experiment))
    with continuable(directory), watching(experiment.method.name, quiet, *trackers(track, directory)) as watcher:
        record = train.run(experiment, directory, force=force, watcher=watcher)
    show(record, directory, as_json)


@contextmanager
def continuable(directory: Path) -> Iterator[None]:
    """Add to an interruption how to resume the run in this directory, if the run has started."""
    try:
        yield
    except KeyboardInterrupt:
        begun = (directory / "config.toml").is_file()
        how = f"continue with fedrbn run --resume {shlex.quote(str(directory))}" if begun else "no run has started"
        raise KeyboardInterrupt(how) from None


def trackers(track: Literal["tensorboard"] | None, directory: Path) -> list[TensorBoard]:
    """The watchers that --track asks for, for the run in this directory."""
    if track is None:
        return []
    from fedrbn.runs.tracking import TensorBoard

    return [TensorBoard(directory / track)]


def given(named: dict[str, Any]) -> list[tuple[str, str, Any]]:
    """The options that were given, as (section, key, value)."""
    return [(*name.split("."), value) for name, value in named.items() if value is not None]


def refuse_contradictions(named: dict[str, Any], settings: list[tuple[str, str, list[Any]]]) -> None:
    """Refuse an option and a --set that give one setting different values: one of the two would be ignored."""
    from fedrbn.config import ConfigError

    for section, key, values in settings:
        option = named.get(f"{section}.{key}")
        if option is not None and values != [option]:
            shown = ",".join(map(str, values))
            raise ConfigError(
                f"got {section}.{key} twice: {option} as an option and {shown} with --set; expected one value. Leave "
                "one of the two out."
            )


def read_settings(texts: list[str] | None) -> list[tuple[str, str, list[Any]]]:
    """Every --set as (section, key, values)."""
    from fedrbn.config import parse_setting

    return [parse_setting(text) for text in texts or []]


def seed_numbers(text: str) -> list[int]:
    """The seeds of a comma-separated list."""
    from fedrbn.config import ConfigError

    try:
        return [int(part) for part in listed(text)]
    except ValueError:
        raise ConfigError(f"got --seeds {text!r}; expected whole numbers separated by commas, such as 1,2,3") from None


def as_folder(name: str) -> str:
    """A method's name as part of a folder's name."""
    return name.replace(":", ".").replace("/", ".")
