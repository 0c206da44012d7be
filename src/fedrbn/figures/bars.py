"""Methods side by side: by AT domain, by ratio of AT users, by domain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedrbn.errors import FigureError
from fedrbn.figures import style
from fedrbn.figures.sources import Request, described, results, run_names
from fedrbn.reproduce import reading
from fedrbn.reproduce.table import Number

METRICS = ("RA", "SA")


def grouped(axes: Axes, groups: Sequence[str], bars: Mapping[str, Sequence[Number | None]]) -> None:
    """One bar per series in each group; missing values leave a gap."""
    marks, width = style.marks(list(bars)), 0.84 / len(bars)
    for index, (name, numbers) in enumerate(bars.items()):
        there = [(at, n, n.mean) for at, n in enumerate(numbers) if n is not None and n.mean is not None]
        axes.bar(
            [at + (index - (len(bars) - 1) / 2) * width for at, *_ in there],
            [mean for *_, mean in there],
            width * 0.92,
            yerr=[n.std or 0.0 for _, n, _ in there] if any(n.std for _, n, _ in there) else None,
            error_kw={"elinewidth": 0.7, "capsize": 1.2, "ecolor": "#333333"},
            facecolor="white" if marks[name].hatch else marks[name].colour,
            edgecolor=marks[name].colour,
            hatch=marks[name].hatch,
            linewidth=0.8,
            label=name,
        )
    axes.set_xticks(range(len(groups)), groups)
    axes.tick_params(axis="x", length=0)
    axes.set_ylim(bottom=0)


def _legend(figure: Figure, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=len(labels), handlelength=1.4)


def _over_columns(request: Request, experiment: str, xlabel: str, *, stacked: bool) -> Figure:
    """RA and SA of every method in every column of an experiment with one part."""
    table = results(request, experiment)
    figure = style.page(style.TEXT, 4.0 if stacked else 2.5)
    panels = figure.subplots(*((2, 1) if stacked else (1, 2)))
    groups = [
        column for column in table.columns if any(n.mean is not None for n in table.numbers if n.column == column)
    ]
    for axes, metric in zip(panels, METRICS, strict=True):
        bars = {
            row: [next(iter(table.of(row=row, metric=metric, column=column)), None) for column in groups]
            for row in table.rows
        }
        grouped(axes, groups, bars)
        axes.set(xlabel=xlabel, ylabel=f"{metric} in %")
    _legend(figure, panels[0])
    return style.finish(figure, table.provenance())


def single_domain(request: Request) -> Figure:
    """Each domain in turn is the only one with AT users."""
    return _over_columns(request, "single-domain", "the only AT domain", stacked=False)


def single_domain_domainnet(request: Request) -> Figure:
    """The same on DomainNet."""
    return _over_columns(request, "single-domain-domainnet", "the only AT domain", stacked=False)


def ratio(request: Request) -> Figure:
    """From one AT user in every domain to all."""
    return _over_columns(request, "ratio", "AT users of each domain", stacked=True)


def ratio_domainnet(request: Request) -> Figure:
    """The same on DomainNet."""
    return _over_columns(request, "ratio-domainnet", "AT users of each domain", stacked=False)


def domain_wise(request: Request) -> Figure:
    """RA and SA by domain, for the experiment's methods or for the given runs."""
    if request.runs:
        return _domains_of_runs(request.runs)
    table = results(request, "domain-wise")
    parts = [name for name in table.parts if any(n.mean is not None for n in table.part(name).numbers)]
    figure = style.page(style.TEXT, 0.6 + 1.9 * len(parts))
    panels = figure.subplots(len(parts), 2, squeeze=False)
    domains = list(dict.fromkeys(metric.rpartition(" ")[0] for metric in table.metrics))
    for row, name in zip(panels, parts, strict=True):
        part = table.part(name)
        for axes, metric in zip(row, METRICS, strict=True):
            bars = {
                method: [next(iter(part.of(row=method, metric=f"{domain} {metric}")), None) for domain in domains]
                for method in part.rows
            }
            grouped(axes, domains, bars)
            axes.set(ylabel=f"{metric} in %", title=name.split(", ")[-1])
            axes.tick_params(axis="x", labelsize=6)
    _legend(figure, panels[0][0])
    return style.finish(figure, table.provenance())


def _domains_of_runs(paths: Sequence[Path]) -> Figure:
    names = run_names(paths)
    found = {name: reading.evaluation(path) for path, name in names.items()}
    unfinished = next((path for path, name in names.items() if found[name] is None), None)
    if unfinished is not None:
        raise FigureError(f"got run {unfinished}, which is not finished. Continue it: fedrbn run --resume {unfinished}")
    records = {name: record for name, record in found.items() if record is not None}
    domains = list(dict.fromkeys(domain for record in records.values() for domain in record.domains))
    figure = style.page(style.TEXT, 2.5)
    panels = figure.subplots(1, 2)
    for axes, metric in zip(panels, METRICS, strict=True):
        bars = {
            name: [_of_domain(name, record.domains.get(domain, {}), domain, metric) for domain in domains]
            for name, record in records.items()
        }
        grouped(axes, domains, bars)
        axes.set_ylabel(f"{metric} in %")
    _legend(figure, panels[0])
    return style.finish(figure, "; ".join(f"{name}: {described(path)}" for path, name in names.items()) + ".")


def _of_domain(run: str, means: Mapping[str, float], domain: str, metric: str) -> Number | None:
    value = means.get(metric.lower())
    return None if value is None else Number("", run, domain, metric, "", {0: 100 * value}, None)
