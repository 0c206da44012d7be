"""Watchers of a run, which are notified of its events: a display, a tracker, your own function."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Protocol, TypeAlias

from fedrbn.evaluation.records import RoundRecord
from fedrbn.federated.assemble import Assembly
from fedrbn.federated.protocol import Result

OnRound: TypeAlias = Callable[[RoundRecord], None]
"""Called with the record of each finished round, after it is written to disk. An exception ends the run, which can be
resumed."""


class Watcher(Protocol):
    """Is notified of the events of a run while it trains, for example to display them."""

    def training(self, assembly: Assembly, finished: int) -> None:
        """Training starts, after `finished` earlier rounds."""

    def answered(self, result: Result) -> None:
        """A client has answered."""

    def round_finished(self, record: RoundRecord) -> None:
        """A round is finished; the record is the line written for it."""

    def evaluating(self, clients: int) -> None:
        """The evaluation of `clients` clients on their test data starts."""


class Watchers:
    """Several watchers as one: each is notified of every event, in their order."""

    def __init__(self, watchers: Sequence[Watcher]) -> None:
        self.watchers = tuple(watchers)

    def training(self, assembly: Assembly, finished: int) -> None:
        """See `Watcher`."""
        for watcher in self.watchers:
            watcher.training(assembly, finished)

    def answered(self, result: Result) -> None:
        """See `Watcher`."""
        for watcher in self.watchers:
            watcher.answered(result)

    def round_finished(self, record: RoundRecord) -> None:
        """See `Watcher`."""
        for watcher in self.watchers:
            watcher.round_finished(record)

    def evaluating(self, clients: int) -> None:
        """See `Watcher`."""
        for watcher in self.watchers:
            watcher.evaluating(clients)


class EachRound:
    """Your own function as a `Watcher`."""

    def __init__(self, on_round: OnRound) -> None:
        self.on_round = on_round

    def training(self, assembly: Assembly, finished: int) -> None:
        """Nothing."""

    def answered(self, result: Result) -> None:
        """Nothing."""

    def round_finished(self, record: RoundRecord) -> None:
        """Call the function."""
        self.on_round(record)

    def evaluating(self, clients: int) -> None:
        """Nothing."""


@contextmanager
def combined_watcher(
    title: str, *, progress: bool = False, on_round: OnRound | None = None, watcher: Watcher | None = None
) -> Iterator[Watcher | None]:
    """All that watch a run as one watcher; None if nobody does. `progress` is a display on stderr."""
    with ExitStack() as stack:
        watchers: list[Watcher] = [] if watcher is None else [watcher]
        if progress:
            from fedrbn.runs.console import SafeConsole  # noqa: PLC0415
            from fedrbn.runs.display import Display  # noqa: PLC0415  (rich is slow to import)

            watchers.append(stack.enter_context(Display(SafeConsole(err=True), title)))
        if on_round is not None:
            watchers.append(EachRound(on_round))
        yield Watchers(watchers) if watchers else None
