"""Which donors help which receivers: robustness by pairs of domains, and how the similarity of Eq. 4 predicts it.

Drawn from the runs of `fedrbn reproduce transfer`, in which each domain in turn is the only one with AT. Left: the
robust accuracy of every domain's user by the domain of the donor. Right: the gain of FedRBN over FATBN for each pair,
over the similarity of their clean batch norm at the end of the run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import correlation, mean

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedrbn.errors import FigureError
from fedrbn.federated.propagation import similarity
from fedrbn.figures import style
from fedrbn.figures.sources import Request, cell_runs, results
from fedrbn.reproduce import reading
from fedrbn.runs.load import load
from fedrbn.types import Role

EXPERIMENT = "transfer"
PROPAGATED, PLAIN = "FedRBN", "FATBN"
"""The parts of the experiment: with propagation and calibration, and without."""


@dataclass(frozen=True)
class DomainPair:
    """A receiver and the only donor, in a run with propagation and in one without."""

    donor: str
    receiver: str
    similarity: float
    robust: float
    """RA with propagation, in %."""
    gain: float
    """The gain in points of RA over the run without."""


def pairs(request: Request) -> list[DomainPair]:
    """All pairs of domains, each as the mean over the seeds that both methods have."""
    seeds = results(request, EXPERIMENT).seeds
    runs = cell_runs(request, EXPERIMENT, seeds)
    found: list[DomainPair] = []
    for column in dict.fromkeys(column for _, _, column in runs):
        ours, theirs = (_finished(runs, part, column) for part in (PROPAGATED, PLAIN))
        both = [seed for seed in ours if seed in theirs]
        if not both:
            raise FigureError(
                f"got finished runs of {PROPAGATED} with seeds {list(ours)} and of {PLAIN} with seeds {list(theirs)}, "
                f"both with {column}; expected a common seed. Create them: {request.command(EXPERIMENT, column)}"
            )
        found += _of_donor([ours[seed] for seed in both], [theirs[seed] for seed in both])
    return found


def _finished(runs: Mapping[tuple[str, str, str], Sequence[Path]], part: str, column: str) -> dict[int, Path]:
    """The finished runs of a column by seed; all rows share them and read different domains."""
    paths = next(paths for (own, _, heading), paths in runs.items() if (own, heading) == (part, column))
    found = {path: reading.evaluation(path) for path in paths}
    return {record.seed: path for path, record in found.items() if record is not None}


def _of_donor(ours: Sequence[Path], theirs: Sequence[Path]) -> list[DomainPair]:
    near = [_similarities(path) for path in ours]
    with_, without = ([_robust(path) for path in paths] for paths in (ours, theirs))
    (donor,) = {name for name, _ in near[0]}
    return [
        DomainPair(
            donor,
            receiver,
            mean(one[donor, receiver] for one in near),
            mean(one[receiver] for one in with_),
            mean(one[receiver] for one in with_) - mean(one[receiver] for one in without),
        )
        for receiver in with_[0]
    ]


def _similarities(path: Path) -> dict[tuple[str, str], float]:
    """The similarity of each user to the only AT user (Eq. 4), by (donor's domain, receiver's domain)."""
    trained = load(path)
    members = trained.plan.members
    (donor,) = [member for member in members if member.role is Role.AT]
    scores = similarity(
        trained.state.personal, [member.id for member in members], [donor.id], trained.plan.names.batch_norms
    )
    return {(donor.domain, member.domain): float(score) for member, score in zip(members, scores[:, 0], strict=True)}


def _robust(path: Path) -> dict[str, float]:
    record = reading.evaluation(path)
    return {domain: 100 * values["ra"] for domain, values in (record.domains if record else {}).items()}


def transfer(request: Request) -> Figure:
    """The two panels."""
    found = pairs(request)
    domains = list(dict.fromkeys(pair.receiver for pair in found))
    figure = style.page(style.TEXT, 3.0)
    left, right = figure.subplots(1, 2, width_ratios=(1.05, 1))
    _matrix(left, found, domains)
    _scatter(right, found, domains)
    table = results(request, EXPERIMENT)
    others = [pair for pair in found if pair.donor != pair.receiver]
    r = correlation([pair.similarity for pair in others], [pair.gain for pair in others])
    return style.finish(
        figure,
        table.provenance(
            f"Brackets: the gain over FATBN in points. Hollow: the donor itself. Pearson's r of "
            f"the {len(others)} pairs of different domains: {r:.2f}."
        ),
    )


def _matrix(axes: Axes, found: Sequence[DomainPair], domains: Sequence[str]) -> None:
    """RA with propagation by donor (columns) and receiver (rows), with the gain in brackets."""
    values = np.zeros((len(domains), len(domains)))
    for pair in found:
        row, column = domains.index(pair.receiver), domains.index(pair.donor)
        values[row, column] = pair.robust
        axes.text(
            column,
            row,
            f"{pair.robust:.0f}\n({pair.gain:+.0f})",
            ha="center",
            va="center",
            fontsize=6.5,
            color="white" if pair.robust > 50 else "black",
        )
    axes.imshow(values, cmap="Blues", vmin=0, vmax=100)
    axes.set_xticks(range(len(domains)), domains, rotation=30, ha="right")
    axes.set_yticks(range(len(domains)), domains)
    axes.set(xlabel="the only AT domain", ylabel="receiver", title="RA of FedRBN, in %")
    axes.grid(visible=False)


def _scatter(axes: Axes, found: Sequence[DomainPair], domains: Sequence[str]) -> None:
    """The gain from propagation over the similarity of batch norm."""
    axes.axhline(0, color=style.GREY, linewidth=0.6)
    markers = "os^DvPX"
    for index, domain in enumerate(domains):
        own = [pair for pair in found if pair.receiver == domain]
        colour, marker = style.SERIES[index % len(style.SERIES)], markers[index % len(markers)]
        for pair in own:
            itself = pair.donor == pair.receiver
            axes.plot(
                pair.similarity,
                pair.gain,
                marker,
                color=colour,
                markersize=5 if itself else 4,
                markerfacecolor="none" if itself else colour,
                label=domain if pair is own[0] else None,
            )
    axes.set(xlabel="similarity to the donor (Eq. 4)", ylabel="points of RA above FATBN", title="Gain from propagation")
    axes.legend(title="receiver", loc="best")
