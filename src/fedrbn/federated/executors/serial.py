"""Runs clients in this process. An executor is a function `(round, jobs) -> results`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from fedrbn.federated.executors.grouping import EvaluationGroups, PartMerger, perform_group
from fedrbn.federated.executors.host import ClientHost
from fedrbn.federated.protocol import Execute, Job, Result, Round
from fedrbn.hardware import kept_memory, one_thread


def serial(host: ClientHost) -> Execute:
    """Runs clients one after another in this process; evaluations run together where possible."""
    together = EvaluationGroups(host)

    def execute(round_: Round, jobs: Iterable[Job]) -> Iterator[Result]:
        whole = PartMerger(jobs)
        for group in together.grouped(round_, whole):
            with one_thread():
                results = perform_group(host, round_, [part.job for part in group])
            for part, result in zip(group, results, strict=True):
                complete = whole.add(part, result)
                if complete is not None:
                    yield complete

    return execute


@contextmanager
def in_this_process(host: ClientHost) -> Iterator[Execute]:
    """The serial executor at the speed of a worker: within this block the process keeps freed memory for reuse."""
    with kept_memory():
        yield serial(host)
