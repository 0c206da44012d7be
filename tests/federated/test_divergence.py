"""Divergence is announced while the losses are still numbers, with client and layer."""

from __future__ import annotations

from fedrbn.federated.divergence import diverging, first_losses_of
from fedrbn.federated.server import RoundReport
from fedrbn.federated.uploads.validation import Movement


def report(**losses: float) -> RoundReport:
    moved = {client: Movement(f"network.{client}", loss / 10) for client, loss in losses.items()}
    return RoundReport(4, 0.1, {client: {"loss": loss} for client, loss in losses.items()}, moved=moved)


def test_the_first_loss_of_each_client() -> None:
    assert first_losses_of([{"a": 2.0}, {"a": 1.0, "b": 3.0}]) == {"a": 2.0, "b": 3.0}
    assert first_losses_of([]) == {}


def test_the_client_whose_loss_has_grown_most_is_named_with_its_layer() -> None:
    """a: 6 / 2 = 3 times, b: 20 / 4 = 5 times."""
    warning = diverging(report(a=6.0, b=20.0), {"a": 2.0, "b": 4.0})
    assert warning is not None
    assert "got a loss of 20 from client 'b' in round 4, 5.0 times that of its first round" in warning
    assert "; expected it to fall" in warning
    assert "largest in layer 'network.b' and 2 times as long as the weights" in warning
    assert "lower train.lr" in warning


def test_losses_that_fall_or_waver_or_are_new_are_no_alarm() -> None:
    assert diverging(report(a=5.9, b=1.0), {"a": 2.0, "b": 2.0}) is None
    assert diverging(report(a=99.0), {}) is None, "nothing to compare with"
    assert diverging(report(a=99.0), {"a": 0.0}) is None
