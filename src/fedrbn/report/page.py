"""Makes one self-contained HTML file from run directories: no network, no server, no other file."""

from __future__ import annotations

import base64
import hashlib
import importlib.resources
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import TypeAlias

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from fedrbn.config import Experiment
from fedrbn.errors import StorageError
from fedrbn.federated.assemble import Assembly, assemble
from fedrbn.report import comparison, one_run, reproduced
from fedrbn.report.gather import Run, find, read_run
from fedrbn.report.one_run import Extras, RunView
from fedrbn.report.recomputed import checklist, donations
from fedrbn.report.sample_sheet import contact_sheet
from fedrbn.reproduce.table_file import read_table
from fedrbn.runs.load import Trained, load

MOST_SHEETS = 4
"""With more runs than this, images are left out: they would take most of the page and of the time."""


Announce: TypeAlias = Callable[[str], None]
"""Shows one line to whoever is waiting for the page."""

_EXPECTED = (ValueError, TypeError, RuntimeError, OSError)
"""Errors of a missing or invalid checkpoint or data set: the page reports them and shows the rest."""


def write_report(
    paths: Iterable[Path | str],
    out: Path | str,
    *,
    images: bool = True,
    checks: bool = True,
    announce: Announce = lambda _: None,
) -> Path:
    """Write a page about runs, stores of runs and `fedrbn reproduce` results; returns its path.

    `images` and `checks` need the run's data: the contact sheet is computed from the checkpoint, and the check-list is
    measured if no evaluation has measured it yet. Without the data, the page says what is missing and why. `announce`
    is called with one line before each step that may take minutes.
    """
    page = render(paths, images=images, checks=checks, announce=announce)
    file = Path(out)
    if file.is_dir():
        raise StorageError(
            f"got {file}, which is a directory; expected the name of a file, such as {file}/report.html."
        )
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(page, encoding="utf-8")
    except OSError as error:
        raise StorageError(
            f"got {file}, which cannot be written ({error}); expected a file that can be written. Choose another -o."
        ) from error
    return file


def render(
    paths: Iterable[Path | str], *, images: bool = True, checks: bool = True, announce: Announce = lambda _: None
) -> str:
    """The page as text."""
    found = find(Path(path) for path in paths)
    runs = [read_run(path) for path in found.runs]
    groups = comparison.grouped(runs)
    views = _run_views(groups, images, checks, announce)
    results = [
        reproduced.view(read_table(path / "table.json"), f"table-{n}") for n, path in enumerate(found.results, start=1)
    ]
    style, script = (_packaged(name) for name in ("report.css", "report.js"))
    template = Environment(
        loader=PackageLoader("fedrbn.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    ).get_template("report.html.j2")
    return template.render(
        title=_title(views, [result.title for result in results]),
        policy=_policy(style, script),
        style=Markup(style),  # noqa: S704  (our own files, never what a run says)
        script=Markup(script),  # noqa: S704
        version=version("fedrbn"),
        compared=comparison.comparison(groups),
        runs=views,
        results=results,
    )


def _title(runs: Sequence[RunView], results: Sequence[str]) -> str:
    """The name of the only item on the page, or the number of items."""
    named = [f"{run.label}, on {run.data}" for run in runs] + list(results)
    if len(named) == 1:
        return named[0]
    data = {run.data for run in runs}
    shared = f" on {runs[0].data}" if len(data) == 1 else ""
    counted = [f"{len(runs)} run{'s' * (len(runs) > 1)}{shared}"] * bool(runs)
    counted += [f"{len(results)} reproduced table{'s' * (len(results) > 1)}"] * bool(results)
    return " and ".join(counted)


def _packaged(name: str) -> str:
    return importlib.resources.files("fedrbn.report").joinpath(name).read_text(encoding="utf-8")


def _policy(style: str, script: str) -> str:
    """A content security policy that allows only this style, this script and embedded images."""
    allowed = {"style-src": _hash(style), "script-src": _hash(script), "img-src": "data:"}
    rules = [f"{kind} {what}" for kind, what in allowed.items()]
    return "; ".join(["default-src 'none'", *rules, "base-uri 'none'", "form-action 'none'"])


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode('ascii')}'"


def _run_views(groups: Sequence[comparison.SeedGroup], images: bool, checks: bool, announce: Announce) -> list[RunView]:
    many = sum(len(group.runs) for group in groups) > MOST_SHEETS
    no_images = "Images were not requested." if not images else ""
    if images and many:
        no_images = f"Images are left out with more than {MOST_SHEETS} runs: make a report of only this run."
    views: list[RunView] = []
    for group in groups:
        for run in group.runs:
            label = f"{group.label}, seed {run.experiment.run.seed}"
            missing = checks and not run.checks
            if missing:
                announce(f"{label}: running the check-list, which may take minutes (--no-checks leaves it out)")
            extras = _extras(run, no_images, missing)
            views.append(one_run.view(run, label, f"run-{len(views) + 1}", extras))
    return views


def _extras(run: Run, no_images: str, checks: bool) -> Extras:
    """What can be computed from the checkpoint; `no_images` is the reason if images are not wanted."""
    no_checks = f"Not measured. fedrbn evaluate {run.path} measures it, and the next report shows it."
    try:
        trained = load(run.path)
        extras = Extras(trained.plan.schedule.rounds, donations(trained), no_images=no_images, no_checks=no_checks)
    except _EXPECTED as error:
        reason = f"The networks could not be loaded: {error}"
        return Extras(run.experiment.train.rounds, no_images=no_images or reason, no_checks=no_checks, notes=(reason,))
    if no_images and not checks:
        return extras
    try:
        assembly = _with_data(run.experiment, trained)
        return replace(
            extras,
            strips=() if no_images else contact_sheet(trained, assembly),
            checks=checklist(trained, assembly) if checks else (),
        )
    except _EXPECTED as error:
        reason = f"The run's data are needed for this and could not be used: {error}"
        return replace(extras, no_images=no_images or reason, no_checks=reason if checks else no_checks)


def _with_data(experiment: Experiment, trained: Trained) -> Assembly:
    """The run's data, divided as in the run."""
    here = experiment.run.model_copy(update={"workers": 1, "device": "cpu"})
    assembly = assemble(experiment.model_copy(update={"run": here}))
    if tuple(client.id for client in assembly.federation.clients) != trained.clients:
        raise StorageError(
            "got data that give other clients than those of the run; expected the data it was trained on. "
            "Set FEDRBN_DATA to their folder."
        )
    return assembly
