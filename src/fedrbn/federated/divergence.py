"""Says early that training diverges, and where, while the losses are still numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fedrbn.federated.server import RoundReport

FACTOR = 3.0
"""A client whose loss is so many times that of its first round is said to diverge; it started as good as guessing."""


def first_losses_of(rounds: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Each client's loss in the first of these rounds that it took part in."""
    found: dict[str, float] = {}
    for losses in rounds:
        for client, loss in losses.items():
            found.setdefault(client, loss)
    return found


def diverging(report: RoundReport, first: Mapping[str, float]) -> str | None:
    """A warning that names the client whose loss has grown most, and the layer it moved most; None if all is well."""
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
        f"{growth[worst]:.1f} times that of its first; expected it to fall. Its update went farthest in layer "
        f"{moved.layer!r} and was {moved.growth:.2g} times as long as the weights. Training diverges: lower train.lr."
    )
