"""All figures by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from fedrbn.config import plugins
from fedrbn.figures import (
    bars,
    bn_shift,
    curves,
    epsilon,
    lines,
    penultimate,
    samples,
    sizes,
    statistics,
    style,
    transfer,
)
from fedrbn.figures.sources import Request
from fedrbn.reproduce import declarations


@dataclass(frozen=True)
class Entry:
    """A figure: what it shows, where it is in the paper, and what it is drawn from."""

    title: str
    place: str
    needs: str
    draw: Callable[[Request], Figure]
    experiment: str = "benchmark"
    """The experiment of `fedrbn reproduce` whose numbers or runs it shows."""


def _numbers(experiment: str, title: str, draw: Callable[[Request], Figure], also: str = "") -> Entry:
    place = declarations.read(experiment).place
    return Entry(title, place, f"reproduce {experiment}{also}", draw, experiment)


FIGURES: Mapping[str, Entry] = {
    "highlight": _numbers("highlight", "RA over the share of AT users, ours and the paper's", lines.highlight),
    "single-domain": _numbers("single-domain", "RA and SA by the only AT domain", bars.single_domain),
    "ratio": _numbers("ratio", "RA and SA by the ratio of AT users", bars.ratio),
    "trade-off": _numbers("trade-off", "RA and SA over λ, with the paper's numbers", lines.trade_off),
    "convergence": _numbers("convergence", "Validation over rounds", curves.convergence, " or --run DIR …"),
    "participants": _numbers("participants", "RA, SA and validation by users per round", lines.participants),
    "users": _numbers("users", "RA, SA and validation by users", lines.users),
    "data-size": _numbers("data-size", "RA and SA over shares of training and held-out images", lines.data_size),
    "domain-wise": _numbers("domain-wise", "RA and SA by domain", bars.domain_wise, " or --run DIR …"),
    "ratio-domainnet": _numbers(
        "ratio-domainnet", "RA and SA by the ratio of AT users, DomainNet", bars.ratio_domainnet
    ),
    "single-domain-domainnet": _numbers(
        "single-domain-domainnet", "RA and SA by the only AT domain, DomainNet", bars.single_domain_domainnet
    ),
    "bn-pca": Entry(
        "Users' batch-norm statistics, layer by layer", "Appendix C.4",
        "a run: of reproduce benchmark, or --run DIR", statistics.bn_pca,
    ),
    "bn-shift": Entry(
        "How far an attack moves batch-norm statistics, layer by layer", "docs/claims.md",
        "a run of each threat model: of reproduce benchmark, or --run DIR --run DIR", bn_shift.bn_shift,
    ),
    "penultimate-standard": Entry(
        "The penultimate layer of the standard model", "Appendix C.5",
        "a run: of reproduce highlight, or --run DIR", penultimate.standard_penultimate, "highlight",
    ),
    "penultimate": Entry(
        "The penultimate layer through BN_c and BN_a", "Appendix C.5",
        "a run: of reproduce benchmark, or --run DIR", penultimate.bn_penultimate,
    ),
    "penultimate-transfer": Entry(
        "The penultimate layer through trained and transferred BN_a", "Figure 2",
        "two runs: of reproduce benchmark, or --run DIR --run DIR", penultimate.transfer_penultimate,
    ),
    "transfer": Entry(
        "Robustness by donor and receiver, and the similarity of their batch norm", "docs/transfer.md",
        "reproduce transfer, with its runs", transfer.transfer, "transfer",
    ),
    "plus": _numbers("plus", "RA over SA: FedRBN's trade-off curve and FedRBN+", lines.plus),
    "user-sizes": Entry(
        "Training images of each user under Dirichlet", "not in the printed paper",
        "the declaration of reproduce dirichlet, or --run DIR", sizes.user_sizes, "dirichlet",
    ),
    "samples": Entry("Images of every domain", "Appendix C.1", "--data NAME (digits)", samples.samples),
    "epsilon": Entry("RA over ε as three adversaries see it", "not in the paper", "--run DIR", epsilon.epsilon),
}  # fmt: skip


def find(name: str) -> Entry:
    """A figure by its name."""
    if name not in FIGURES:
        raise plugins.unknown("figure", name, FIGURES, own=False)
    return FIGURES[name]


def draw(entry: Entry, request: Request, path: Path) -> tuple[Path, Path]:
    """Draw a figure and write it as SVG and PNG."""
    with style.applied():
        return style.save(entry.draw(request), path, entry.title)
