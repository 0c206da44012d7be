"""The number of images per user when sizes are drawn from a Dirichlet distribution."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedrbn.config import Experiment
from fedrbn.cost.count import without_images
from fedrbn.figures import style
from fedrbn.figures.sources import Request
from fedrbn.reproduce import declarations, experiment_cells
from fedrbn.reproduce.scales import SCALES
from fedrbn.runs.directory import RunDirectory
from fedrbn.types import Member, Role

EXPERIMENT = "dirichlet"
LARGEST = 220.0
"""Area of the largest circle in square points."""


def user_sizes(request: Request) -> Figure:
    """The users of the experiment at a scale, or of a run; no training is needed."""
    experiment = RunDirectory.open(request.runs[0]).experiment() if request.runs else _declared(request)
    return circles(without_images(experiment).plan.members, experiment)


def _declared(request: Request) -> Experiment:
    seed = (request.seeds or (1,))[0]
    cells = experiment_cells.cells(
        declarations.read(EXPERIMENT), SCALES[request.scale], [seed], threat=request.threat, data=request.data
    )
    return cells[0].runs[0]


def circles(members: Sequence[Member], experiment: Experiment) -> Figure:
    """A row for each domain, a circle for each user: its area is the number of training images; filled for AT users."""
    domains = list(dict.fromkeys(member.domain for member in members))
    largest = max(member.samples for member in members)
    figure = style.page(style.TEXT, 0.7 + 0.5 * len(domains))
    axes = figure.subplots()
    for row, domain in enumerate(domains):
        own = [member for member in members if member.domain == domain]
        colour = style.SERIES[row % len(style.SERIES)]
        axes.scatter(
            range(len(own)),
            [row] * len(own),
            [LARGEST * member.samples / largest for member in own],
            facecolors=[colour if member.role is Role.AT else "white" for member in own],
            edgecolors=colour,
            linewidths=0.9,
        )
        for index, member in enumerate(own):
            axes.annotate(
                str(member.samples),
                (index, row),
                xytext=(0, -13),
                textcoords="offset points",
                ha="center",
                fontsize=5.5,
            )
    axes.set_yticks(range(len(domains)), domains)
    axes.set(xlabel="user of its domain", ylim=(len(domains) - 0.3, -0.5))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.margins(x=0.04)
    smallest = min(member.samples for member in members)
    return style.finish(
        figure,
        f"Training images of each of {len(members)} users, {smallest} to {largest}: the area of the circles. "
        f"Filled: AT users. {experiment.data.name}, partition {_named(experiment)}, seed {experiment.run.seed}.",
    )


def _named(experiment: Experiment) -> str:
    sizes = experiment.federation.partition.sizes
    return sizes if isinstance(sizes, str) else f"Dirichlet with concentration {sizes.concentration:g}"
