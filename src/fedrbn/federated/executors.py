"""Where clients run: in this process, or in worker processes; the same numbers bit for bit.

An executor is a function `(round, jobs) -> results`. Every client computes with one thread: two busy processes with
one thread each are faster than one process with two, and sums do not depend on the number of cores.
"""

from __future__ import annotations

import copy
import multiprocessing.connection
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as mp
from safetensors.torch import load as from_bytes
from safetensors.torch import save as to_bytes
from torch import Tensor

from fedrbn.data.samples import Client
from fedrbn.federated.client import adapt, local_update
from fedrbn.federated.server import FederationError
from fedrbn.nets.dual_bn import DualNet, load
from fedrbn.randomness import derive, generator
from fedrbn.types import Answers, Evaluate, Execute, Failure, Job, Result, Round, Tensors, Train, Upload


@dataclass(frozen=True)
class Site:
    """What it takes to run clients: their data and a network to work in, whose weights each job overwrites."""

    clients: dict[str, Client]
    net: DualNet
    store: Path | None = None
    """Where clients keep what a method has to remember from round to round; see `federated.memory`."""


def perform(site: Site, round_: Round, job: Job) -> Result:
    """Do one client's job. The network's own randomness (dropout) is seeded too, and the global state is restored."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(round_.seed, "round", round_.number, "client", job.client, "network"))
        try:
            if isinstance(job, Train):
                return local_update(site.net, site.clients[job.client], round_, job, site.store)
            return _evaluate(site, round_, job)
        except (
            Exception
        ) as error:  # whatever goes wrong at a client, a plug-in's bug included, is for the server to judge
            return Failure(job.client, round_.number, f"{type(error).__name__}: {error}")


def _evaluate(site: Site, round_: Round, job: Evaluate) -> Answers:
    net, client = site.net.eval(), site.clients[job.client]
    load(net, round_.shared)
    load(net, job.personal)
    adapt(net, client, round_)
    samples = (client.validation if job.part == "validation" else client.test).first(job.limit)
    correct: Tensors = {}
    for question in job.questions:
        correct |= question(net, samples, generator(round_.seed, "evaluate", job.part, job.client, str(question)))
    return Answers(job.client, round_.number, correct)


def serial(site: Site) -> Execute:
    """Clients one after another in this process."""

    def execute(round_: Round, jobs: Iterable[Job]) -> Iterator[Result]:
        for job in jobs:
            with one_thread():
                result = perform(site, round_, job)
            yield result

    return execute


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread within this block."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def processes(site: Site, workers: int) -> Iterator[Execute]:
    """Clients in worker processes that live as long as this block. Results come as they are ready, in any order.

    The clients' data and each round's shared weights are in shared memory: they are not copied to every worker.
    """
    for client in site.clients.values():
        for part in (client.train, client.validation, client.test):
            _share(part.images)
            _share(part.labels)
    context = mp.get_context("spawn")
    pool = [_Worker(context, site) for _ in range(workers)]
    try:
        yield lambda round_, jobs: _dispatch(pool, round_, jobs)
    finally:
        for worker in pool:
            worker.stop()


class _Worker:
    """A process that performs jobs, and the line to it."""

    def __init__(self, context: Any, site: Site) -> None:
        self.line, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs, site), daemon=True)
        self.process.start()
        theirs.close()

    def send(self, message: Round | Job) -> None:
        try:
            self.line.send(_sealed(message))
        except (BrokenPipeError, ConnectionResetError):
            raise self.death() from None

    def receive(self) -> Result:
        try:
            answer: Result = _opened(self.line.recv())
        except (EOFError, OSError):  # OSError: it died while its tensors were being fetched
            raise self.death() from None
        return answer

    def death(self) -> FederationError:
        self.process.join(timeout=5)
        return FederationError(
            f"got a worker process that ended (exit code {self.process.exitcode}) in the middle of a job; expected an "
            "answer. It may have run out of memory: use fewer workers (run.workers), then resume the run."
        )

    def stop(self) -> None:
        self.line.close()
        self.process.join(timeout=5)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


def _dispatch(pool: list[_Worker], round_: Round, jobs: Iterable[Job]) -> Iterator[Result]:
    """One job at a time to each worker; whoever is done gets the next."""
    round_ = replace(round_, shared=_in_shared_memory(round_.shared))
    waiting = iter(jobs)
    busy: dict[Any, _Worker] = {}
    for worker in pool:
        worker.send(round_)

    def next_job(worker: _Worker) -> None:
        job = next(waiting, None)
        if job is not None:
            worker.send(job)
            busy[worker.line] = worker

    for worker in pool:
        next_job(worker)
    while busy:
        for line in multiprocessing.connection.wait(list(busy)):
            worker = busy.pop(line)
            result = worker.receive()
            next_job(worker)
            yield result


_SMALL = {Train: "personal", Evaluate: "personal", Upload: "personal", Answers: "correct"}
"""The field of each message that holds many small tensors."""


def _sealed(message: Any) -> Any:
    """The message with its small tensors as bytes: in shared memory each of them would hold a file descriptor."""
    name = _SMALL.get(type(message))
    if name is None:
        return message
    return replace(message, **{name: {}}), to_bytes(getattr(message, name))


def _opened(sealed: Any) -> Any:
    """The message that `_sealed` closed."""
    if not isinstance(sealed, tuple):
        return sealed
    message, content = sealed
    return replace(message, **{_SMALL[type(message)]: from_bytes(content)})


def _in_shared_memory(tensors: Tensors) -> Tensors:
    return {name: _share(tensor.clone()) for name, tensor in tensors.items()}


def _share(tensor: Tensor) -> Tensor:
    """Move the tensor's storage to shared memory, where other processes can see it."""
    return tensor.share_memory_()  # type: ignore[no-any-return, no-untyped-call]


def _work(line: Any, site: Site) -> None:
    """A worker's life: take a round, perform its jobs, until the line is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle: it closes the line
    torch.set_num_threads(1)
    # PyTorch hands tensors to a process in shared memory: without a copy, all workers would train in one network.
    site = replace(site, net=copy.deepcopy(site.net))
    round_: Round | None = None
    while True:
        try:
            message = _opened(line.recv())
            if isinstance(message, Round):
                round_ = message
            elif round_ is not None:
                line.send(_sealed(perform(site, round_, message)))
        except (EOFError, ConnectionError):  # the parent has closed the line, perhaps without waiting for the answer
            return
