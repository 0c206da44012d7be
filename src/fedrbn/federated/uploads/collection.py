"""Handles the answers of a round on the server: orders them, admits the valid ones, records the others.

If a client raises, hangs, dies, answers late, twice or with invalid data, the round loses that client's update and the
run continues: the mean is taken over the remaining clients, with renormalised weights (`aggregation.mean`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from fedrbn.errors import FederationError, UploadError
from fedrbn.federated.aggregation.mean import Contribution
from fedrbn.federated.protocol import Failure, Result, Upload
from fedrbn.federated.uploads.validation import Movement, UploadCheck, malformed
from fedrbn.types import Tensors

_SHOWN = 3


class TooFewClientsError(FederationError):
    """Fewer clients answered than `faults.min_clients`; `failures` says what happened to the others."""

    def __init__(self, number: int, shortage: str, failures: Sequence[Failure]) -> None:
        self.number = number
        """The number of rounds finished before."""
        self.failures = tuple(failures)
        causes = [f"client {f.client!r} failed in round {f.round + 1}: {f.cause}" for f in failures[:_SHOWN]]
        if len(failures) > _SHOWN:
            causes.append(f"and {len(failures) - _SHOWN} more")
        super().__init__(
            f"{shortage} in round {number + 1} (faults.min_clients).\n  "
            + "\n  ".join(causes)
            + f"\nFix the cause, then resume from round {number} with fedrbn run --resume; "
            "faults.on_too_few = 'wait' keeps asking instead."
        )


def listed(failures: Iterable[Failure]) -> list[dict[str, Any]]:
    """Failures in the format of the records, where rounds count from 1."""
    return [{"client": failure.client, "round": failure.round + 1, "cause": failure.cause} for failure in failures]


class UploadCollector:
    """Takes the answers of one round. The large part of an upload is passed on for aggregation, the small part kept."""

    def __init__(self, number: int, checks: Mapping[str, UploadCheck]) -> None:
        self.number = number
        self.checks = checks
        self.personal: dict[str, Tensors] = {}
        """The local batch norm that the admitted clients sent."""
        self.metrics: dict[str, dict[str, float]] = {}
        self.moved: dict[str, Movement] = {}
        self.failures: list[Failure] = []

    def missing(self) -> list[str]:
        """The clients without an admitted answer."""
        return [client for client in self.checks if client not in self.personal]

    def contributions(self, results: Iterable[Result]) -> Iterator[Contribution]:
        """The admitted results, in the order of the clients."""
        for result in in_order(results, self.missing(), self.number, self._note):
            if isinstance(result, Failure):
                self._note(result)
                continue
            if not isinstance(result, Upload):
                self._refuse(result.client, f"got {type(result).__name__} from {result.client!r}; expected an Upload.")
                continue
            check = self.checks[result.client]
            try:
                self.moved[result.client] = check.admit(result)
            except UploadError as error:
                self._refuse(result.client, str(error))
                continue
            self.personal[result.client] = result.personal
            self.metrics[result.client] = result.metrics
            weight, role = float(result.samples), check.member.role
            yield Contribution(result.client, result.shared, weight, role, result.metrics["loss"])

    def _refuse(self, client: str, cause: str) -> None:
        self._note(Failure(client, self.number, cause))

    def _note(self, failure: Failure) -> None:
        """Record a failure once, even if a client is asked again and fails in the same way."""
        if failure not in self.failures:
            self.failures.append(failure)


def in_order(
    results: Iterable[Result],
    clients: Sequence[str],
    number: int,
    note: Callable[[Failure], None] = lambda _: None,
) -> Iterator[Result]:
    """One result for each client, in the order of the clients, independent of the order of arrival.

    Sums must not depend on which client was faster. Answers to another round, second answers and answers from clients
    that were not asked are recorded and left out. A client that never answers gets a Failure at the end. A malformed
    answer becomes a Failure of its client, if it names one.
    """
    asked, awaited = frozenset(clients), set(clients)
    early: dict[str, Result] = {}
    turn = 0
    for given in _each(results):
        result = _well_formed(given, number)
        stray = _stray(result, number, asked, awaited)
        if stray is not None:
            note(Failure(result.client, number, stray))
            continue
        awaited.remove(result.client)
        early[result.client] = result
        while turn < len(clients) and clients[turn] in early:
            yield early.pop(clients[turn])
            turn += 1
    for client in clients[turn:]:
        cause = f"got no answer from client {client!r}; expected one from each of {len(clients)}."
        yield early.pop(client, Failure(client, number, cause))


def _each(results: Iterable[Result]) -> Iterator[Result]:
    """The results one by one; raises an error if the executor did not return an iterator."""
    try:
        found = iter(results)
    except TypeError:
        raise FederationError(
            f"got {type(results).__name__} from the executor; expected an iterator of results. An executor is a "
            "function (round, jobs) -> results: let it yield one for each job."
        ) from None
    return found


def _well_formed(given: Result, number: int) -> Result:
    """The result itself, or a Failure if its fields have wrong types."""
    objection = malformed(given)
    if objection is None:
        return given
    client = getattr(given, "client", None)
    return Failure(client if isinstance(client, str) else "(unknown)", number, objection)


def _stray(result: Result, number: int, asked: Collection[str], awaited: Collection[str]) -> str | None:
    """Why this is not the expected answer of a client; None if it is."""
    if result.round != number:
        return (
            f"got an answer to round {result.round + 1}; expected one to round {number + 1}. It arrived too late and "
            "is left out: allow more time with faults.deadline_seconds."
        )
    if result.client not in asked:
        return "got an answer from a client that was not asked; expected only those that were asked. It is left out."
    if result.client not in awaited:
        return "got a second answer; expected one. The first one counts."
    return None
