"""Clients in worker processes that live as long as a run; the same numbers as in one process, bit for bit.

A worker process that dies is replaced and its job done again, which gives the numbers that it would have given the
first time, because all randomness comes from (seed, round, client). Every worker computes with one thread: two busy
processes with one thread each are faster than one process with two.
"""

from __future__ import annotations

import copy
import math
import multiprocessing.connection
import signal
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, NamedTuple

import torch
import torch.multiprocessing as mp

from fedrbn.errors import FederationError
from fedrbn.federated.executors.grouping import EvaluationGroups, JobGroup, PartMerger, perform_group
from fedrbn.federated.executors.host import ClientHost
from fedrbn.federated.executors.shared_memory import BorrowedBuffers, Returned, SharedBuffers, packed, share, unpacked
from fedrbn.federated.protocol import Execute, Failure, Job, Result, Round
from fedrbn.hardware import keep_memory


@contextmanager
def processes(host: ClientHost, workers: int) -> Iterator[Execute]:
    """Clients in worker processes that live as long as this block. Results come as they are ready, in any order.

    The clients' data and each round's shared weights are in shared memory: they are not copied to every worker.
    """
    for client in host.clients.values():
        for part in (client.train, client.validation, client.test):
            share(part.images)
            share(part.labels)
    pool, buffers = [_Worker(host) for _ in range(workers)], SharedBuffers()
    try:
        for worker in pool:
            worker.start()
        together = EvaluationGroups(host)
        yield lambda round_, jobs: _dispatch(pool, buffers, together, round_, jobs)
    finally:
        for worker in pool:
            worker.stop()


def _dispatch(
    pool: Sequence[_Worker], buffers: SharedBuffers, together: EvaluationGroups, round_: Round, jobs: Iterable[Job]
) -> Iterator[Result]:
    """One group of jobs at a time to each worker; whoever is done gets the next."""
    for worker in pool:
        worker.drop()  # a round that was abandoned: its late answers must not be taken for answers to this one
    buffers.take_back()  # so nobody looks at the weights of an earlier round any more
    round_ = replace(round_, shared=buffers.put(round_.shared).views() if round_.shared else {})
    whole = PartMerger(jobs)
    waiting = together.grouped(round_, whole)
    for worker, group in zip(pool, waiting, strict=False):
        worker.take(_Task(round_, group))
    while busy := [worker for worker in pool if worker.task is not None]:
        for worker in _with_news(busy):
            task, results = worker.task, worker.news()
            if task is not None and results is not None:
                following = next(waiting, None)
                if following is not None:
                    worker.take(_Task(round_, following))
                parts = zip(task.group, results, strict=True)
                yield from (found for part, result in parts if (found := whole.add(part, result)) is not None)


def _with_news(busy: Sequence[_Worker]) -> list[_Worker]:
    """Wait until some of the workers have something to say, have died, or have run out of time; return those."""
    remaining = min(worker.remaining() for worker in busy)
    speaking = multiprocessing.connection.wait(
        [worker.line for worker in busy], None if math.isinf(remaining) else max(0.0, remaining)
    )
    return [worker for worker in busy if worker.line in speaking or worker.remaining() <= 0]


_HELLO = "ready"
"""What a worker says first: from then on the time of its job counts, and its death is the job's."""

_STARTUP_SECONDS = 60.0
"""Where jobs have a deadline, starting a worker has one too: so much more than a job's. It takes two seconds."""

_NOT_WRITTEN = (AttributeError, TypeError)
"""How Python refuses to write an object for another process."""

_ATTEMPTS = 2
"""A job during which the worker dies is done once more; a worker that cannot start is started once more."""


class _Task(NamedTuple):
    """Jobs that are done together and the round they belong to."""

    round: Round
    group: JobGroup

    def failed(self, cause: str) -> list[Result]:
        return [Failure(part.job.client, self.round.number, cause) for part in self.group]


class _Worker:
    """A place where one client's job is done at a time: a process, the line to it, and what it is at."""

    def __init__(self, host: ClientHost) -> None:
        self.host = host
        self.context = mp.get_context("spawn")
        self.process: Any = None
        self.line: Any = None
        self.ready = False
        self.round: Round | None = None
        """The round that the process knows of."""
        self.borrowed = BorrowedBuffers()
        """What of its shared memory is in use here."""
        self.task: _Task | None = None
        self.asked = self.started = math.inf
        self.deaths = self.false_starts = 0

    def start(self) -> None:
        """Start a new process, in place of the one there was."""
        self.line, theirs = self.context.Pipe()
        self.ready, self.round, self.borrowed = False, None, BorrowedBuffers()
        try:
            self.process = self.context.Process(target=_work, args=(theirs, self.host), daemon=True)
            self.process.start()
            self.started = time.monotonic()
        except OSError as error:
            self.process = None
            raise _cannot_start(str(error)) from error
        except _NOT_WRITTEN as error:
            self.process = None
            raise _cannot_send(error) from None
        finally:
            theirs.close()

    def take(self, task: _Task) -> None:
        """Begin a job."""
        self.task, self.deaths = task, 0
        self._ask(task)

    def _ask(self, task: _Task) -> None:
        if self.process is None:
            self.start()
        self.asked = time.monotonic()
        with suppress(BrokenPipeError, ConnectionResetError):  # it is dead, which `news` will find out
            if self.round is not task.round:
                self.line.send(packed(task.round))
                self.round = task.round
            self.line.send(self.borrowed.ended())
            try:
                self.line.send([packed(part.job) for part in task.group])
            except _NOT_WRITTEN as error:
                raise _cannot_send(error) from None

    def remaining(self) -> float:
        """Seconds until the deadline of the job, or of starting, before the worker is ready."""
        allowed = self.task.round.deadline_seconds if self.task else None
        if allowed is None:
            return math.inf
        return (self.asked if self.ready else self.started + _STARTUP_SECONDS) + allowed - time.monotonic()

    def news(self) -> list[Result] | None:
        """The results of the jobs, once they are there."""
        if self.task is None:
            return None
        if not self.line.poll():
            return self._overdue(self.task) if self.remaining() <= 0 else None
        try:
            said = self.line.recv()
            results = [] if said == _HELLO else [unpacked(each, self.borrowed) for each in said]
        except (EOFError, OSError):  # OSError: it died while its tensors were being fetched
            return self._died(self.task)
        if said == _HELLO:
            self.ready, self.false_starts, self.asked = True, 0, time.monotonic()
            return None
        self.task = None
        return results

    def _overdue(self, task: _Task) -> list[Result] | None:
        if not self.ready:
            return self._lost(task, "it was not ready in time")
        self.drop()
        return task.failed(
            f"got no answer within {task.round.deadline_seconds:g} seconds; expected one by then. The client hangs or "
            "is slow: allow more time with faults.deadline_seconds."
        )

    def _died(self, task: _Task) -> list[Result] | None:
        self.process.join(timeout=5)
        return self._lost(task, f"exit code {self.process.exitcode}")

    def _lost(self, task: _Task, end: str) -> list[Result] | None:
        """Begin the job anew in a new process, unless that has been tried often enough."""
        self.kill()
        if self.ready:
            self.deaths += 1
        else:
            self.false_starts += 1
        if self.false_starts >= _ATTEMPTS:
            raise _cannot_start(end)
        if self.deaths >= _ATTEMPTS:
            self.task = None
            return task.failed(
                f"got a worker process that ended ({end}) in the middle of the job, {self.deaths} times; expected an "
                "answer. It may have run out of memory: use fewer workers (run.workers), then resume the run."
            )
        self._ask(task)
        return None

    def drop(self) -> None:
        """Forget the job, if there is one, and end the process that is at it."""
        if self.task is not None:
            self.task = None
            self.kill()

    def kill(self) -> None:
        """End the process at once."""
        if self.process is not None:
            self.process.kill()
            self.process.join()
            self.line.close()
            self.process = None

    def stop(self) -> None:
        """End the process: an idle one by closing the line to it."""
        self.drop()
        if self.process is not None:
            self.line.close()
            self.process.join(timeout=5)
            self.kill()


def _cannot_start(why: str) -> FederationError:
    return FederationError(
        f"got a worker process that could not start ({why}), {_ATTEMPTS} times; expected one that can. A script that "
        "trains needs the guard `if __name__ == '__main__':`; if memory is short, use fewer workers (run.workers)."
    )


def _cannot_send(error: Exception) -> FederationError:
    return FederationError(
        f"got code that cannot be sent to a worker process ({error}); expected functions and classes at the top of a "
        "module. Move it there, or use one worker: run.workers = 1."
    )


def _work(line: Any, host: ClientHost) -> None:
    """A worker's life: take a round, perform its jobs, until the line is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle: it closes the line
    torch.set_num_threads(1)
    keep_memory()
    # PyTorch hands tensors to a process in shared memory: without a copy, all workers would train in one network.
    host = replace(host, net=copy.deepcopy(host.net))
    round_: Round | None = None
    buffers = SharedBuffers()
    with suppress(ConnectionError):
        line.send(_HELLO)
    while True:
        try:
            message = line.recv()
            if isinstance(message, Round):
                round_ = message
            elif isinstance(message, Returned):
                buffers.take_back(message)
            elif round_ is not None:
                jobs = [unpacked(each) for each in message]
                line.send([packed(result, buffers) for result in perform_group(host, round_, jobs)])
        except (EOFError, ConnectionError):  # the parent has closed the line, perhaps without waiting for the answer
            return
