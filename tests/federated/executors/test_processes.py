"""Serial and process-parallel executors: the same numbers, clear errors, nothing left behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Generator, Tensor, nn

from federated.tiny import clients, network, plan, site
from fedrbn.attacks import PGD, Untargeted
from fedrbn.config import FaultsConfig, make
from fedrbn.data.samples import Samples
from fedrbn.errors import FederationError
from fedrbn.evaluation.accuracy import CONFIDENT, Accuracy
from fedrbn.federated.executors import processes as pool_of_processes
from fedrbn.federated.executors.host import ClientHost
from fedrbn.federated.executors.processes import processes
from fedrbn.federated.executors.serial import serial
from fedrbn.federated.methods import METHODS, Method, fedrbn
from fedrbn.federated.protocol import (
    Answers,
    Evaluate,
    Execute,
    Failure,
    Job,
    Result,
    Round,
    ServerState,
    Train,
    Upload,
)
from fedrbn.federated.server import Plan, federate, initial_state, round_of
from fedrbn.federated.training.free import Free
from fedrbn.nets.dual_bn import DualNet
from fedrbn.nets.fast import fast
from fedrbn.nets.precision import in_precision
from fedrbn.runs import train
from fedrbn.types import Branch, Role

ATTACK = PGD(eps=0.1, steps=2, step_size=0.06)
WHO = clients((Role.AT, 20), (Role.ST, 9), (Role.ST, 12), (Role.AT, 8), (Role.ST, 5))
METHOD = fedrbn(ATTACK)
"""Enough work that two workers are at it at the same time."""
PLAN = plan(METHOD, site(METHOD, WHO).net, list(WHO.values()), rounds=3, batch_size=4)


@pytest.fixture(scope="module")
def pool() -> Iterator[Execute]:
    before = set(multiprocessing.active_children())
    with processes(site(METHOD, WHO), workers=2) as execute:
        yield execute
    assert set(multiprocessing.active_children()) <= before, "no process outlives the block"


def states(execute: Execute) -> list[ServerState]:
    return [state for state, _ in federate(initial_state(site(METHOD, WHO).net, PLAN), PLAN, execute)]


def evaluations(state: ServerState) -> list[Evaluate]:
    attack = Untargeted(ATTACK)
    questions = (
        Accuracy(Branch.CLEAN),
        Accuracy(Branch.NOISED, "pgd", attack, adaptive=True),
        Accuracy(CONFIDENT, "pgd", attack),
    )
    return [Evaluate(name, state.personal[name], "test", questions) for name in WHO]


def test_processes_give_the_numbers_of_the_serial_executor_bit_for_bit(pool: Execute) -> None:
    ours, theirs = states(serial(site(METHOD, WHO))), states(pool)
    for one, other in zip(ours, theirs, strict=True):
        assert one.reported == other.reported
        for name, tensor in one.shared.items():
            assert torch.equal(tensor, other.shared[name]), name
        for client, own in one.personal.items():
            assert own.keys() == other.personal[client].keys()
            assert all(torch.equal(tensor, other.personal[client][name]) for name, tensor in own.items())


@pytest.mark.usefixtures("bfloat16")
def test_bfloat16_gives_the_same_numbers_in_processes_bit_for_bit_and_others_than_float32() -> None:
    torch.manual_seed(0)
    layers = (nn.Conv2d(1, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(24, 2))
    net = fast(METHOD.network(nn.Sequential(*layers)))
    plan_ = plan(METHOD, net, list(WHO.values()), rounds=2, batch_size=4)

    def last(execute: Execute) -> ServerState:
        return [state for state, _ in federate(initial_state(net, plan_), plan_, execute)][-1]

    host = ClientHost(WHO, in_precision(net, torch.bfloat16))
    with processes(host, workers=2) as execute:
        other = last(execute)
    one = last(serial(host))
    assert one.reported == other.reported
    assert all(torch.equal(tensor, other.shared[name]) for name, tensor in one.shared.items())
    exact = last(serial(ClientHost(WHO, net)))
    assert any(not torch.equal(tensor, exact.shared[name]) for name, tensor in one.shared.items())


def test_processes_give_the_answers_of_the_serial_executor(pool: Execute) -> None:
    state = states(serial(site(METHOD, WHO)))[-1]
    answers = []
    for execute in (serial(site(METHOD, WHO)), pool):
        results = {result.client: result for result in execute(round_of(state, PLAN), evaluations(state))}
        assert results.keys() == WHO.keys()
        assert all(isinstance(result, Answers) for result in results.values())
        answers.append(
            {(name, key): value.tolist() for name in WHO for key, value in results[name].correct.items()}  # type: ignore[union-attr]
        )
    assert answers[0] == answers[1]
    assert list(answers[0]) == list(answers[1]), "in the order that tables show them"
    assert {len(value) for value in answers[0].values()} == {7}, "all seven test images of every client"
    assert len({tuple(value) for value in answers[0].values()}) > 1


def diverging(state: ServerState) -> Round:
    return replace(round_of(state, PLAN), lr=1e30)


def train_jobs(state: ServerState) -> list[Train]:
    return [Train(name, client.role.duty, state.personal[name], calibrate=False) for name, client in WHO.items()]


@pytest.mark.parametrize("parallel", [False, True], ids=["serial", "processes"])
def test_a_client_that_fails_says_why_and_the_others_still_answer(pool: Execute, parallel: bool) -> None:
    execute = pool if parallel else serial(site(METHOD, WHO))
    state = initial_state(site(METHOD, WHO).net, PLAN)
    jobs = [*train_jobs(state), replace(train_jobs(state)[0], client="stranger")]
    results = {result.client: result for result in execute(diverging(state), jobs)}
    assert results.keys() == {*WHO, "stranger"}
    failed = results["c0"]
    assert isinstance(failed, Failure)
    assert "FloatingPointError: got loss" in failed.cause
    assert "lower train.lr" in failed.cause
    stranger = results["stranger"]
    assert isinstance(stranger, Failure)
    assert "stranger" in stranger.cause


@pytest.mark.parametrize("parallel", [False, True], ids=["serial", "processes"])
def test_a_failing_client_ends_the_federation_with_one_clear_error(parallel: bool) -> None:
    bad = replace(METHOD, st=Broken())
    todo = replace(PLAN, method=bad)
    start = initial_state(site(bad, WHO).net, todo)
    before = set(multiprocessing.active_children())
    with (
        pytest.raises(FederationError, match=r"client 'c1' failed in round 1: RuntimeError: the disk is full"),
        processes(site(bad, WHO), workers=1) if parallel else nullcontext(serial(site(bad, WHO))) as execute,
    ):
        next(federate(start, todo, execute))
    assert set(multiprocessing.active_children()) <= before


class Broken:
    """An objective of somebody whose disk is full."""

    def __call__(self, net: DualNet, x: Tensor, y: Tensor, generator: Generator) -> float:
        raise RuntimeError("the disk is full")


class Killed:
    """An objective during which the operating system kills the process, as it does when memory runs out."""

    def __call__(self, net: DualNet, x: Tensor, y: Tensor, generator: Generator) -> float:
        os.kill(os.getpid(), signal.SIGKILL)
        return 0.0


PAIR = {name: WHO[name] for name in ("c1", "c3")}
PAIR_PLAN = plan(METHOD, site(METHOD, PAIR).net, list(PAIR.values()), rounds=1)


def lenient(method: Method, **settings: float) -> tuple[Plan, ServerState]:
    """A plan for an ST and an AT user of which one is enough, and where it starts."""
    todo = replace(PAIR_PLAN, method=method, faults=FaultsConfig.model_validate({"min_clients": 1, **settings}))
    return todo, initial_state(site(method, PAIR).net, todo)


@pytest.mark.slow
def test_a_client_that_kills_its_worker_every_time_is_a_failure_and_the_others_go_on() -> None:
    method = replace(METHOD, st=Killed())
    todo, state = lenient(method)
    before = set(multiprocessing.active_children())
    with processes(site(method, PAIR), workers=1) as execute:
        after, report = next(federate(state, todo, execute))
    assert after.reported == {"c3": 1}
    (failure,) = report.failures
    assert failure.client == "c1"
    assert "ended (exit code -9) during the job, 2 times" in failure.cause
    assert "use fewer workers" in failure.cause
    assert set(multiprocessing.active_children()) <= before


def worker_of(before: set[Any]) -> Any:
    (worker,) = set(multiprocessing.active_children()) - before
    return worker


@pytest.mark.slow
@pytest.mark.parametrize("busy", [True, False], ids=["in a job", "between rounds"])
def test_a_killed_worker_is_replaced_and_the_numbers_are_the_same(busy: bool) -> None:
    ours = states(serial(site(METHOD, WHO)))
    before = set(multiprocessing.active_children())
    theirs, reports = [], []
    with processes(site(METHOD, WHO), workers=1) as execute:

        def killing(round_: Round, jobs: Iterable[Job]) -> Iterator[Result]:
            for result in execute(round_, jobs):
                if busy and result.client == "c2":  # its worker has begun with c3
                    worker_of(before).kill()
                yield result

        for state, report in federate(initial_state(site(METHOD, WHO).net, PLAN), PLAN, killing):
            theirs.append(state)
            reports.append(report)
            if not busy:
                victim = worker_of(before)
                victim.kill()
                victim.join()
    assert [report.failures for report in reports] == [()] * 3
    for one, other in zip(ours, theirs, strict=True):
        assert all(torch.equal(tensor, other.shared[name]) for name, tensor in one.shared.items())
        assert one.reported == other.reported
    assert set(multiprocessing.active_children()) <= before


class Hanging:
    """An objective that never ends."""

    def __call__(self, net: DualNet, x: Tensor, y: Tensor, generator: Generator) -> float:
        time.sleep(3600)
        return 0.0


@pytest.mark.slow
def test_a_client_that_hangs_past_its_deadline_is_given_up_and_the_others_go_on() -> None:
    method = replace(METHOD, st=Hanging())
    todo, state = lenient(method, deadline_seconds=8.0)
    before = set(multiprocessing.active_children())
    started = time.monotonic()
    with processes(site(method, PAIR), workers=1) as execute:
        after, report = next(federate(state, todo, execute))
    assert time.monotonic() - started < 120
    assert after.reported == {"c3": 1}
    (failure,) = report.failures
    assert failure.client == "c1"
    assert "got no answer within 8 seconds; expected" in failure.cause
    assert set(multiprocessing.active_children()) <= before


@pytest.mark.slow
def test_a_worker_that_hangs_before_it_is_ready_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine stops it while it starts: nothing of the job is lost, it is done by a new one."""
    monkeypatch.setattr("fedrbn.federated.executors.processes._STARTUP_SECONDS", 0.0)
    todo, state = lenient(METHOD, deadline_seconds=20.0)
    before = set(multiprocessing.active_children())
    with processes(site(METHOD, PAIR), workers=1) as execute:
        (stopped,) = set(multiprocessing.active_children()) - before
        assert stopped.pid
        os.kill(stopped.pid, signal.SIGSTOP)
        after, report = next(federate(state, todo, execute))
    assert report.failures == ()
    assert after.reported.keys() == PAIR.keys()


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_worker_that_freezes_while_its_answer_is_read_is_given_up_at_the_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """PyTorch asks the worker for the file descriptors of the tensors in its answer, and a frozen one never replies."""
    wait = pool_of_processes._with_news
    frozen: list[int] = []

    def freeze_the_first(busy: Any) -> Any:
        speaking = wait(busy)
        for worker in speaking:
            if worker.ready and worker.line.poll() and not frozen:  # its answer is in the pipe, its tensors are not
                frozen.append(worker.process.pid)
                os.kill(worker.process.pid, signal.SIGSTOP)
        return speaking

    monkeypatch.setattr(pool_of_processes, "_with_news", freeze_the_first)
    todo, state = lenient(METHOD, deadline_seconds=8.0)
    before = set(multiprocessing.active_children())
    with processes(site(METHOD, PAIR), workers=1) as execute:
        after, report = next(federate(state, todo, execute))
    assert frozen
    (failure,) = report.failures
    assert "got no answer within 8 seconds; expected" in failure.cause
    assert after.reported.keys() == PAIR.keys() - {failure.client}
    assert set(multiprocessing.active_children()) <= before


@pytest.mark.slow
def test_answers_of_an_abandoned_round_are_not_taken_for_those_of_the_next(pool: Execute) -> None:
    """The caller turns away while both workers are busy, and asks other clients something else."""
    state = initial_state(site(METHOD, WHO).net, PLAN)
    abandoned = pool(round_of(state, PLAN), train_jobs(state))
    next(abandoned)
    asked = replace(round_of(state, PLAN), number=7)
    found = list(pool(asked, [job for job in train_jobs(state) if job.client in ("c1", "c2")]))
    assert sorted((result.client, result.round) for result in found) == [("c1", 7), ("c2", 7)]
    assert all(isinstance(result, Upload) for result in found)


class Unreadable(Samples):
    """Data that no other process can read."""

    def __setstate__(self, _: object) -> None:
        raise MemoryError


def test_a_worker_that_imports_a_script_without_the_guard_ends_before_it_starts_a_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """`spawn` marks a process while it imports the main script; without the guard, the script calls run again."""
    monkeypatch.setattr(multiprocessing.current_process(), "_inheriting", True, raising=False)
    with pytest.raises(SystemExit):
        train.run(make({}), tmp_path / "run")
    with pytest.raises(SystemExit):
        train.resume(tmp_path / "run")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_workers_that_cannot_start_end_the_run_with_a_remedy() -> None:
    broken = {"c0": replace(WHO["c0"], train=Unreadable(WHO["c0"].train.images, WHO["c0"].train.labels))}
    state = initial_state(site(METHOD, WHO).net, PLAN)
    with (
        pytest.raises(FederationError, match=r"could not start \(exit code 1\), 2 times; .*__main__.*run\.workers"),
        processes(site(METHOD, broken), workers=1) as execute,
    ):
        list(execute(round_of(state, PLAN), train_jobs(state)[:1]))


def test_the_global_random_state_is_neither_used_nor_moved() -> None:
    """Even for dropout, which draws from it."""
    place = ClientHost(WHO, METHOD.network(network(dropout=True)))
    todo = plan(METHOD, place.net, list(WHO.values()))
    start = initial_state(place.net, todo)
    ends = []
    for seed in (5, 6):
        torch.manual_seed(seed)
        before = torch.random.get_rng_state()
        ends.append([state for state, _ in federate(start, todo, serial(place))][-1])
        assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(tensor, ends[1].shared[name]) for name, tensor in ends[0].shared.items())


def test_processes_remember_what_the_serial_executor_remembers(tmp_path: Path) -> None:
    """Free AT's noise is written by whichever process had the client last, and read by whichever has it next."""
    method = replace(METHODS["fatbn-free"](ATTACK), at_training=Free(0.1, replays=2))
    todo = plan(method, site(method, WHO).net, list(WHO.values()), rounds=6, batch_size=4)
    assert todo.schedule.rounds == 3
    start = initial_state(site(method, WHO).net, todo)
    one, two = (replace(site(method, WHO), store=tmp_path / name) for name in ("serial", "processes"))
    *_, (ours, _) = federate(start, todo, serial(one))
    with processes(two, workers=2) as execute:
        *_, (theirs, _) = federate(start, todo, execute)
    assert all(torch.equal(tensor, theirs.shared[name]) for name, tensor in ours.shared.items())
    kept = sorted(path.relative_to(tmp_path / "serial") for path in (tmp_path / "serial").rglob("*.safetensors"))
    assert [path.as_posix() for path in kept] == [
        f"{client}/{number}.safetensors" for client in ("c0", "c3") for number in (1, 2, 3)
    ]
    for path in kept:
        assert (tmp_path / "serial" / path).read_bytes() == (tmp_path / "processes" / path).read_bytes()


def test_a_method_that_remembers_needs_a_store() -> None:
    method = METHODS["fatavg-free"](ATTACK)
    todo = plan(method, site(method, WHO).net, list(WHO.values()), rounds=16)
    with pytest.raises(
        FederationError, match=r"client 'c0' failed in round 2: .* keeps noise between rounds, but no store"
    ):
        list(federate(initial_state(site(method, WHO).net, todo), todo, serial(site(method, WHO))))
