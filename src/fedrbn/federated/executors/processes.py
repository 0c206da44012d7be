"""Runs clients in worker processes that live as long as the run; results are bit-identical to those of one process.

A worker process that dies is replaced and its job is repeated. The result is the same as the first time, because all
randomness comes from (seed, round, client). Every worker uses one thread: two busy processes with one thread each are
faster than one process with two threads.
"""

from __future__ import annotations

import copy
import math
import multiprocessing
import multiprocessing.connection
import signal
import threading
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


def end_if_importing() -> None:
    """End this process if it is a worker that is importing a script without the guard, which would start a run again.

    It ends without a word: the main process reports it, with the remedy.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):  # set by `spawn` while it imports the script
        raise SystemExit(1)


@contextmanager
def processes(host: ClientHost, workers: int) -> Iterator[Execute]:
    """Clients in worker processes that live as long as this block. Results arrive as they are ready, in any order.

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
    """Give each worker one group of jobs at a time; a worker that is done gets the next group."""
    for worker in pool:
        worker.drop()  # left over from an abandoned round: its late answers must not count as answers to this one
    buffers.take_back()  # no worker reads the weights of an earlier round any longer
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
    """Wait until some of the workers have answered, have died, or are out of time; return those."""
    remaining = min(worker.remaining() for worker in busy)
    speaking = multiprocessing.connection.wait(
        [worker.line for worker in busy], None if math.isinf(remaining) else max(0.0, remaining)
    )
    return [worker for worker in busy if worker.line in speaking or worker.remaining() <= 0]


_HELLO = "ready"
"""The first message of a worker: from then on its job's deadline runs, and a crash counts against the job."""

_STARTUP_SECONDS = 60.0
"""If jobs have a deadline, starting a worker has one too, longer by this much. A start takes two seconds."""

_READING_SECONDS = 2.0
"""An answer that has begun to arrive at the deadline may take this much longer."""

_NOT_WRITTEN = (AttributeError, TypeError)
"""The errors that Python raises for an object that cannot be pickled."""

_ATTEMPTS = 2
"""A job whose worker dies is repeated once; a worker that cannot start is started once more."""


class _Task(NamedTuple):
    """Jobs that run together and the round they belong to."""

    round: Round
    group: JobGroup

    def failed(self, cause: str) -> list[Result]:
        return [Failure(part.job.client, self.round.number, cause) for part in self.group]


class _Worker:
    """Runs one task at a time: a process, the connection to it, and its current task."""

    def __init__(self, host: ClientHost) -> None:
        self.host = host
        self.context = mp.get_context("spawn")
        self.process: Any = None
        self.line: Any = None
        self.ready = False
        self.round: Round | None = None
        """The round that the process has received."""
        self.borrowed = BorrowedBuffers()
        """The blocks of its shared memory that are in use here."""
        self.task: _Task | None = None
        self.asked = self.started = math.inf
        self.deaths = self.false_starts = 0

    def start(self) -> None:
        """Start a new process in place of the old one."""
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
        """Start a task."""
        self.task, self.deaths = task, 0
        self._ask(task)

    def _ask(self, task: _Task) -> None:
        if self.process is None:
            self.start()
        self.asked = time.monotonic()
        # Suppressed: the process is dead; `news` will notice.
        with self._ends_at_deadline(), suppress(BrokenPipeError, ConnectionResetError):
            if self.round is not task.round:
                self.line.send(packed(task.round))
                self.round = task.round
            self.line.send(self.borrowed.ended())
            try:
                self.line.send([packed(part.job) for part in task.group])
            except _NOT_WRITTEN as error:
                raise _cannot_send(error) from None

    def remaining(self) -> float:
        """Seconds until the deadline of the job, or of the start if the worker is not ready yet."""
        allowed = self.task.round.deadline_seconds if self.task else None
        if allowed is None:
            return math.inf
        return (self.asked if self.ready else self.started + _STARTUP_SECONDS) + allowed - time.monotonic()

    @contextmanager
    def _ends_at_deadline(self) -> Iterator[None]:
        """Kill the process if this block, which exchanges messages with it, lasts beyond the deadline.

        Reading an answer needs the process: PyTorch asks it for the file descriptors of the tensors. If it is frozen,
        that blocks forever; once it is dead, it is an error.
        """
        remaining = self.remaining()
        if math.isinf(remaining):
            yield
            return
        timer = threading.Timer(max(remaining, _READING_SECONDS), self.process.kill)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def news(self) -> list[Result] | None:
        """The results of the jobs, once they have arrived."""
        if self.task is None:
            return None
        if not self.line.poll():
            return self._overdue(self.task) if self.remaining() <= 0 else None
        try:
            with self._ends_at_deadline():
                said = self.line.recv()
                results = [] if said == _HELLO else [unpacked(each, self.borrowed) for each in said]
        except (EOFError, OSError):  # OSError: the process died while its tensors were being read
            return self._overdue(self.task) if self.remaining() <= 0 else self._died(self.task)
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
            f"got no answer within {task.round.deadline_seconds:g} seconds; expected one in time. The client hangs or "
            "is slow: allow more time with faults.deadline_seconds."
        )

    def _died(self, task: _Task) -> list[Result] | None:
        self.process.join(timeout=5)
        return self._lost(task, f"exit code {self.process.exitcode}")

    def _lost(self, task: _Task, end: str) -> list[Result] | None:
        """Repeat the task in a new process, unless all attempts are used up."""
        self.kill()
        if self.ready:
            self.deaths += 1
        else:
            self.false_starts += 1
        if self.false_starts >= _ATTEMPTS:
            raise _cannot_start(end) from None
        if self.deaths >= _ATTEMPTS:
            self.task = None
            return task.failed(
                f"got a worker process that ended ({end}) during the job, {self.deaths} times; expected an "
                "answer. It may have run out of memory: use fewer workers (run.workers), then resume the run."
            )
        self._ask(task)
        return None

    def drop(self) -> None:
        """Drop the current task, if there is one, and end the process that runs it."""
        if self.task is not None:
            self.task = None
            self.kill()

    def kill(self) -> None:
        """End the process immediately."""
        if self.process is not None:
            self.process.kill()
            self.process.join()
            self.line.close()
            self.process = None

    def stop(self) -> None:
        """End the process; an idle one ends when the connection is closed."""
        self.drop()
        if self.process is not None:
            self.line.close()
            self.process.join(timeout=5)
            self.kill()


def _cannot_start(why: str) -> FederationError:
    return FederationError(
        f"got a worker process that could not start ({why}), {_ATTEMPTS} times; expected it to start. A script that "
        "trains needs the guard `if __name__ == '__main__':`; if memory is short, use fewer workers (run.workers)."
    )


def _cannot_send(error: Exception) -> FederationError:
    return FederationError(
        f"got code that cannot be sent to a worker process ({error}); expected functions and classes at the top of a "
        "module. Move it there, or use one worker: run.workers = 1."
    )


def _work(line: Any, host: ClientHost) -> None:
    """The main loop of a worker: receive a round and perform its jobs, until the connection is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C: it closes the connection
    torch.set_num_threads(1)
    keep_memory()
    # PyTorch passes tensors to a process in shared memory: without a copy, all workers would train the same network.
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
        except (EOFError, ConnectionError):  # the parent closed the connection, perhaps without waiting for the answer
            return
