"""Groups clients whose evaluations run together, and reassembles each client's answers.

Clients that share everything except batch norm are evaluated in groups, one question at a time (`lockstep`). These
cases run client by client: a network whose rows cannot share a pass, a client that adapts first, and a question about
many images. The groups depend only on the jobs, not on the executor, so every executor gives the same numbers.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeAlias

import torch

from fedrbn.data.samples import Samples
from fedrbn.federated.executors.host import ClientHost, answers, failure, network_seed, perform, samples_of
from fedrbn.federated.executors.lockstep import ROWS, LockstepTask, in_lockstep
from fedrbn.federated.protocol import Answers, Evaluate, Failure, Job, Network, Question, Result, Round
from fedrbn.nets.joint import separable
from fedrbn.nets.state import batch_norms, load, tensors
from fedrbn.types import Tensors

GROUP = 2 * ROWS
"""Images per group of clients: enough to keep passes full as images drop out, few enough to give every core a group."""


class JobPart(NamedTuple):
    """A job, or the part of an evaluation that runs as one unit."""

    number: int
    """The number of the job it belongs to."""
    place: int
    """The index of its first question within the job."""
    job: Job


JobGroup: TypeAlias = tuple[JobPart, ...]
"""Parts that run together."""


class EvaluationGroups:
    """How the jobs of a host's clients are grouped."""

    def __init__(self, host: ClientHost) -> None:
        self._host = host
        self._separable: bool | None = None
        names = batch_norms(host.net)
        self._personal = {n for each in names for n in (*each.statistics, each.count, *each.affine)}
        self._shapes = {name: tensor.shape for name, tensor in tensors(host.net).items()}

    def grouped(self, round_: Round, jobs: Iterable[Job]) -> Iterator[JobGroup]:
        """All jobs in parts: training jobs one by one as they come, evaluations once all of them are known."""
        alone: list[JobGroup] = []
        together: dict[int, list[tuple[JobPart, int]]] = defaultdict(list)
        for number, job in enumerate(jobs):
            if not (isinstance(job, Evaluate) and job.questions):
                yield (JobPart(number, 0, job),)
                continue
            for part, images in _parts(number, job, self._images(round_, job)):
                if images is None:
                    alone.append((part,))
                else:
                    together[part.place].append((part, images))
        found = [*alone, *(group for parts in together.values() for group in _cut(parts))]
        yield from sorted(found, key=lambda group: (group[-1].number, group[-1].place))  # clients finish one by one

    def _images(self, round_: Round, job: Evaluate) -> int | None:
        """The number of images of a client that can be evaluated together with others; None if it cannot."""
        client = self._host.clients.get(job.client)
        shared = all(n in self._personal and self._shapes[n] == value.shape for n, value in job.personal.items())
        if client is None or not shared or round_.method.adaptation is not None:
            return None
        samples = samples_of(client, job)
        if self._separable is None and len(samples):
            self._separable = self._tried(samples)
        return len(samples) if self._separable else None

    def _tried(self, samples: Samples) -> bool:
        """Whether rows can share a pass; not on an accelerator, whose gradient thread must not wait."""
        net = self._host.net
        if net.device.type != "cpu":
            return False
        with torch.random.fork_rng(devices=[]):
            return separable(net.eval(), samples.pixels(slice(0, 3))[0])


def _parts(number: int, job: Evaluate, images: int | None) -> Iterator[tuple[JobPart, int | None]]:
    """The questions of a job in parts: each question about few images alone, with their number; adjacent others joined.

    `images` is the number of images of the client, None if its rows cannot share a pass.
    """
    rest: list[Question] = []
    for place, question in enumerate((*job.questions, None)):
        few = question is not None and images is not None and _looked_at(question, images) < ROWS
        if (few or question is None) and rest:
            yield JobPart(number, place - len(rest), replace(job, questions=tuple(rest))), None
            rest = []
        if question is not None and images is not None and few:
            yield JobPart(number, place, replace(job, questions=(question,))), _looked_at(question, images)
        elif question is not None:
            rest.append(question)


def _looked_at(question: Question, images: int) -> int:
    return images if question.limit is None else min(images, question.limit)


def _cut(parts: Sequence[tuple[JobPart, int]]) -> list[JobGroup]:
    """Adjacent parts in groups with about the same number of images each, about `GROUP` at most."""
    total = sum(images for _, images in parts)
    count = max(1, math.ceil(total / GROUP))
    groups: list[list[JobPart]] = [[] for _ in range(count)]
    before = 0
    for part, images in parts:
        middle = before + images / 2
        groups[min(count - 1, int(middle * count / max(1, total)))].append(part)
        before += images
    return [tuple(group) for group in groups if group]


def perform_group(host: ClientHost, round_: Round, jobs: Sequence[Job]) -> list[Result]:
    """Run the jobs of a group: a single one as usual, several evaluations together."""
    asked = [job for job in jobs if isinstance(job, Evaluate)]
    if len(jobs) == 1 or len(asked) < len(jobs):
        return [perform(host, round_, job) for job in jobs]
    net = host.net.eval()
    wanted = [parameter.requires_grad for parameter in net.parameters()]
    load(net, round_.shared)
    net.requires_grad_(False)
    try:
        tasks = [LockstepTask(job.personal, _asking(host, round_, job), network_seed(round_, job)) for job in asked]
        outcomes = in_lockstep(net, tasks)
    finally:
        for parameter, before in zip(net.parameters(), wanted, strict=True):
            parameter.requires_grad_(before)
    return [
        failure(host, round_, job, found) if isinstance(found, Exception) else found
        for job, found in zip(asked, outcomes, strict=True)
    ]


def _asking(host: ClientHost, round_: Round, job: Evaluate) -> Callable[[Network], Answers]:
    return lambda net: answers(net, host.clients[job.client], round_, job)


class PartMerger:
    """Joins the parts of each client's answers, in the order of its questions."""

    def __init__(self, jobs: Iterable[Job]) -> None:
        self._jobs = jobs
        self._questions: dict[int, int] = {}
        self._found: dict[int, list[tuple[JobPart, Result]]] = defaultdict(list)

    def __iter__(self) -> Iterator[Job]:
        """The jobs; the number of questions in each is recorded on the way."""
        for number, job in enumerate(self._jobs):
            self._questions[number] = len(job.questions) if isinstance(job, Evaluate) else 0
            yield job

    def add(self, part: JobPart, result: Result) -> Result | None:
        """The result of the whole job, if this was its last part. If one part fails, the job fails."""
        found = self._found[part.number]
        found.append((part, result))
        answered = sum(len(each.job.questions) for each, _ in found if isinstance(each.job, Evaluate))
        if answered < self._questions[part.number]:
            return None
        found.sort(key=lambda each: each[0].place)
        first = found[0][1]
        failed = next((each for _, each in found if isinstance(each, Failure)), None)
        if failed is not None or not isinstance(first, Answers):
            return failed or first
        correct: Tensors = {}
        for _, each in found:
            correct |= each.correct if isinstance(each, Answers) else {}
        return replace(first, correct=correct)
