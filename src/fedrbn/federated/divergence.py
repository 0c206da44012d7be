"""Warns early that training diverges, and where, while the losses are still finite."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fedrbn.federated.server import RoundReport

FACTOR = 3.0
"""A client diverges if its loss is this many times that of its first round, when it is hardly better than guessing."""


def first_losses_of(rounds: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Each client's loss in the first round that it took part in."""
    found: dict[str, float] = {}
    for losses in rounds:
        for client, loss in losses.items():
            found.setdefault(client, loss)
    return found


def diverging(report: RoundReport, first: Mapping[str, float]) -> str | None:
    """A warning that names the client whose loss grew most and the layer that moved most; None if none diverges."""
    growth = {
        client: metrics["loss"] / first[client]
        for client, metrics in report.clients.items()
        if first.get(client, 0.0) > 0
    }
    worst = max(growth, key=growth.__getitem__, default=None)
    if worst is None or growth[worst] < FACTOR:
        return None
    moved = report.moved[worst]
    return (
        f"got a loss of {report.clients[worst]['loss']:.3g} from client {worst!r} in round {report.round}, "
        f"{growth[worst]:.1f} times that of its first round; expected it to fall. Its update was largest in layer "
        f"{moved.layer!r} and {moved.growth:.2g} times as long as the weights. Training diverges: lower train.lr."
    )
