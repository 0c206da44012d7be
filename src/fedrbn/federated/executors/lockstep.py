"""Evaluates several clients at the same time by joining their calls of the network into one pass.

Each client's question runs in its own thread, as if it were alone; only one thread runs at a time. A call of the
network suspends its thread. When all threads are suspended, one pass over the joined rows answers as many calls as fit
(`nets.joint`). So an attack does not need to know that its images share a pass, even if it drops images that it has
already broken, and every client draws the same random numbers as when it runs alone.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fedrbn.federated.protocol import Network
from fedrbn.nets.dual_bn import DualNet
from fedrbn.nets.joint import RowNorms, place
from fedrbn.types import Branch, Tensors

ROWS = 128
"""Rows of a joint pass; one client's call with more rows gets its own pass. More would cost memory and save no time."""

T = TypeVar("T")


@dataclass(frozen=True)
class LockstepTask(Generic[T]):
    """A question about one client's network."""

    personal: Tensors
    """The client's own batch norm."""
    question: Callable[[Network], T]
    seed: int
    """The seed of the global random numbers that the question may draw."""


def in_lockstep(net: DualNet, tasks: Sequence[LockstepTask[T]]) -> list[T | Exception]:
    """The answer to each task, or the error. `net` has the shared weights; its own batch norm is not used."""
    norms = RowNorms(net, [task.personal for task in tasks])
    threads = [_Thread(net, owner, task) for owner, task in enumerate(tasks)]
    try:
        _resume(net, norms, threads, [None] * len(threads))
        waiting = [thread for thread in threads if thread.request is not None]
        while waiting:
            chosen = _next(waiting)
            _resume(net, norms, chosen, _served(net, norms, chosen))
            # Move served threads to the end of the queue, so those that were skipped come first next time.
            rest = [thread for thread in waiting if thread not in chosen]
            waiting = rest + [thread for thread in chosen if thread.request is not None]
    finally:
        for thread in threads:
            thread.cancel()
    return [thread.outcome() for thread in threads]


def _resume(net: DualNet, norms: RowNorms, threads: Sequence[_Thread[Any]], answers: Sequence[Any]) -> None:
    """Hand out the answers. A thread that then asks for more than fits into a pass is served immediately.

    So only one thread at a time has many rows in memory. The caller would keep a finished pass alive.
    """
    for thread, answer in zip(threads, answers, strict=True):
        thread.resume(answer)
        while thread.request is not None and thread.request.size > ROWS:
            thread.resume(_served(net, norms, [thread])[0])


@dataclass(frozen=True)
class _Forward:
    """A request for logits."""

    x: Tensor
    row: int
    """The `place` of the owner and branch."""
    differentiable: bool

    @property
    def size(self) -> int:
        """Rows to compute."""
        return len(self.x)


@dataclass(frozen=True)
class _Pass:
    """A joint pass whose gradient may be requested later."""

    x: Tensor
    logits: Tensor


@dataclass(frozen=True)
class _Backward:
    """A request for the gradient at the input of an earlier call."""

    whole: _Pass
    rows: slice
    gradient: Tensor

    @property
    def size(self) -> int:
        """Rows to compute."""
        return len(self.whole.x)


def _next(waiting: Sequence[_Thread[Any]]) -> list[_Thread[Any]]:
    """The threads whose requests are served in the next pass: gradients first, because that frees memory."""
    for thread in waiting:
        if isinstance(thread.request, _Backward):
            whole = thread.request.whole
            return [t for t in waiting if isinstance(t.request, _Backward) and t.request.whole is whole]
    first = cast(_Forward, waiting[0].request)
    chosen: list[_Thread[Any]] = []
    rows = 0
    for thread in waiting:
        request = cast(_Forward, thread.request)
        alike = (request.differentiable, request.x.shape[1:]) == (first.differentiable, first.x.shape[1:])
        if alike and (not chosen or rows + len(request.x) <= ROWS):
            chosen.append(thread)
            rows += len(request.x)
    return chosen


def _served(net: DualNet, norms: RowNorms, chosen: Sequence[_Thread[Any]]) -> list[Any]:
    """The answer to each request; an error goes to all of them."""
    requests = [thread.request for thread in chosen]
    try:
        if isinstance(requests[0], _Backward):
            return _gradients(cast(Sequence[_Backward], requests))
        return _logits(net, norms, cast(Sequence[_Forward], requests))
    except Exception as error:  # raised by a user's network
        return [error] * len(chosen)


def _logits(net: DualNet, norms: RowNorms, requests: Sequence[_Forward]) -> list[tuple[Tensor, _Pass, slice]]:
    sizes = [len(request.x) for request in requests]
    rows = torch.tensor([request.row for request in requests]).repeat_interleave(torch.tensor(sizes))
    x = torch.cat([request.x for request in requests])
    with torch.set_grad_enabled(requests[0].differentiable):
        whole = _Pass(x.requires_grad_(requests[0].differentiable), net.through(x, norms(rows)))
    ends = torch.tensor(sizes).cumsum(0).tolist()
    places = [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]
    return [(whole.logits.detach()[rows], whole, rows) for rows in places]


def _gradients(requests: Sequence[_Backward]) -> list[Tensor]:
    whole = requests[0].whole
    asked = torch.zeros_like(whole.logits)
    for request in requests:
        asked[request.rows] = request.gradient
    (found,) = torch.autograd.grad(whole.logits, whole.x, asked, retain_graph=True)
    return [found[request.rows] for request in requests]


class _Member:
    """One client's network as its question sees it."""

    def __init__(self, net: DualNet, owner: int, ask: Callable[[_Forward | _Backward], Any]) -> None:
        self.device, self.branches, self.owner, self.ask = net.device, net.branches, owner, ask

    def logits(self, branch: Branch) -> Callable[[Tensor], Tensor]:
        """See `Network`."""
        row = place(self.owner, branch)

        def ask(x: Tensor) -> Tensor:
            if torch.is_grad_enabled() and x.requires_grad:
                return cast(Tensor, _Asked.apply(x, row, self.ask))  # type: ignore[no-untyped-call]
            return cast(Tensor, self.ask(_Forward(x.detach(), row, differentiable=False))[0])

        return ask

    def surface(self, branch: Branch, example: Tensor) -> Callable[[Tensor], Tensor]:  # noqa: ARG002
        """See `Network`."""
        return self.logits(branch)


class _Asked(torch.autograd.Function):
    """Logits of one client and their gradient at the input, both from passes shared with other clients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, row: int, ask: Callable[[_Forward | _Backward], Any]) -> Tensor:
        logits, ctx.whole, ctx.rows = ask(_Forward(x.detach(), row, differentiable=True))
        ctx.ask = ask
        return cast(Tensor, logits)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return ctx.ask(_Backward(ctx.whole, ctx.rows, gradient)), None, None


class _Cancelled(BaseException):
    """Ends a thread whose answer is no longer needed; not an Exception, because a question could catch that."""


class _Thread(Generic[T]):
    """A task in a thread that runs only within `resume`, until it calls the network or ends.

    Each thread has its own copy of the global state that a question may change: torch's random state and stdout.
    """

    def __init__(self, net: DualNet, owner: int, task: LockstepTask[T]) -> None:
        self.request: _Forward | _Backward | None = None
        self._question, self._net = task.question, _Member(net, owner, self._ask)
        self._answer: Any = None
        self._result: T | Exception | None = None
        self._ended = False
        self._awake, self._asleep = threading.Semaphore(0), threading.Semaphore(0)
        self._random, self._stdout = torch.Generator().manual_seed(task.seed).get_state(), sys.stdout
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def resume(self, answer: Any) -> None:
        """Pass the answer to the thread (an exception is raised there), and wait until it asks again or ends."""
        self._answer, self.request = answer, None
        random, stdout = torch.get_rng_state(), sys.stdout
        torch.set_rng_state(self._random)
        sys.stdout = self._stdout
        try:
            self._awake.release()
            self._asleep.acquire()
        finally:  # also on an interrupt
            self._random, self._stdout = torch.get_rng_state(), sys.stdout
            torch.set_rng_state(random)
            sys.stdout = stdout

    def cancel(self) -> None:
        """End the thread at its current point."""
        while not self._ended:
            self.resume(_Cancelled())
        self._thread.join()

    def outcome(self) -> T | Exception:
        """The answer, after the thread has ended."""
        return cast("T | Exception", self._result)

    def _run(self) -> None:
        self._awake.acquire()
        try:
            if not isinstance(self._answer, _Cancelled):
                self._result = self._question(self._net)
        except Exception as error:  # a question may be user code: the caller decides
            self._result = error
        except _Cancelled:
            pass
        finally:
            self._ended = True
            self._asleep.release()

    def _ask(self, request: _Forward | _Backward) -> Any:
        self.request = request
        self._asleep.release()
        self._awake.acquire()
        answer, self._answer = self._answer, None
        if isinstance(answer, BaseException):
            raise answer
        return answer
