"""fedrbn compare: several methods, settings and seeds on the same federation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fedrbn.cli.output import console, listed, print_json, say, watching
from fedrbn.cli.run import (
    AsJson,
    ConfigFile,
    DataName,
    Methods,
    Quiet,
    Rounds,
    Settings,
    Track,
    Workers,
    given,
    read_settings,
    refuse_contradictions,
    seed_numbers,
    trackers,
)


def compare(
    config_file: ConfigFile = None,
    methods: Methods = "fedrbn,fatbn,fatavg",
    seeds: Annotated[str, typer.Option(help="Seeds, separated by commas; the table shows mean ± std.")] = "1",
    data: DataName = None,
    rounds: Rounds = None,
    out: Annotated[Path, typer.Option(help="Store of runs; a run that it already holds is reused.")] = Path("runs"),
    workers: Workers = None,
    settings: Settings = None,
    report: Annotated[
        Path | None, typer.Option(help="Also write an HTML report about these runs to this file.")
    ] = None,
    track: Track = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Run several methods on the same federation and seeds and print one table.

    Lists in --set define a sweep: --set method.lam=0,0.5,1. An interrupted comparison continues where it stopped.
    """
    from fedrbn import config
    from fedrbn.evaluation.records import EvaluationRecord
    from fedrbn.evaluation.tables import comparison_table
    from fedrbn.reproduce.reading import directory as directory_of
    from fedrbn.runs import sweep

    named = {"data.name": data, "train.rounds": rounds, "run.workers": workers}
    wanted = read_settings(settings)
    refuse_contradictions(named, wanted)
    values = config.with_settings(config.read(config_file) if config_file else {}, given(named))
    todo = sweep.cells(values, listed(methods), wanted, seed_numbers(seeds))
    groups: dict[str, list[dict[str, Any]]] = {}
    say(f"{len(todo)} run(s); finished ones in {out} are reused", quiet)
    for cell in todo:
        tracked = trackers(track, directory_of(cell.experiment, out))
        with watching(f"{cell.row} seed {cell.experiment.run.seed}", quiet, *tracked) as watcher:
            groups.setdefault(cell.row, []).append(sweep.complete(cell, out, watcher))
    if as_json:
        print_json(groups)
    else:
        rows = {row: [EvaluationRecord.from_json(record) for record in found] for row, found in groups.items()}
        console().print(comparison_table(rows))
    if report is not None:
        from fedrbn.report import write_report

        made = [directory_of(cell.experiment, out) for cell in todo]
        say(f"report: {write_report(made, report, checks=False)}")
