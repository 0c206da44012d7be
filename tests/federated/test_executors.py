"""Serial and process-parallel executors: the same numbers, clear errors, nothing left behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from federated.tiny import clients, plan, site
from torch import Generator, Tensor

from fedrbn.attacks import PGD, Untargeted
from fedrbn.evaluation import Accuracy
from fedrbn.federated.executors import one_thread, processes, serial
from fedrbn.federated.methods import Method, fedrbn
from fedrbn.federated.server import FederationError, federate, initial_state
from fedrbn.nets.dual_bn import DualNet
from fedrbn.types import Answers, Branch, Evaluate, Execute, Failure, Role, Round, ServerState, Train

ATTACK = PGD(eps=0.1, steps=2, step_size=0.06)
WHO = clients((Role.AT, 20), (Role.ST, 9), (Role.ST, 12), (Role.AT, 8), (Role.ST, 5))
METHOD = fedrbn(ATTACK)
PLAN = plan(METHOD, site(METHOD, WHO).net, list(WHO.values()), rounds=3, batch_size=4)


@pytest.fixture(scope="module")
def pool() -> Iterator[Execute]:
    with processes(site(METHOD, WHO), workers=2) as execute:
        yield execute
    assert multiprocessing.active_children() == [], "no process outlives the block"


def states(execute: Execute) -> list[ServerState]:
    return [state for state, _ in federate(initial_state(site(METHOD, WHO).net, PLAN), PLAN, execute)]


def evaluations(state: ServerState) -> list[Evaluate]:
    questions = (Accuracy(Branch.CLEAN), Accuracy(Branch.NOISED, "pgd", Untargeted(ATTACK)))
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


def test_processes_give_the_answers_of_the_serial_executor(pool: Execute) -> None:
    state = states(serial(site(METHOD, WHO)))[-1]
    answers = []
    for execute in (serial(site(METHOD, WHO)), pool):
        results = {result.client: result for result in execute(PLAN.round(state), evaluations(state))}
        assert results.keys() == WHO.keys()
        assert all(isinstance(result, Answers) for result in results.values())
        answers.append(
            {(name, key): value.tolist() for name in WHO for key, value in results[name].correct.items()}  # type: ignore[union-attr]
        )
    assert answers[0] == answers[1]
    assert {len(value) for value in answers[0].values()} == {7}, "all seven test images of every client"
    assert len({tuple(value) for value in answers[0].values()}) > 1


def diverging(state: ServerState) -> Round:
    return replace(PLAN.round(state), lr=1e30)


def train_jobs(state: ServerState) -> list[Train]:
    return [Train(name, client.role, state.personal[name], calibrate=False) for name, client in WHO.items()]


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
    if parallel:
        with (
            pytest.raises(FederationError, match=r"client 'c1' failed in round 1: RuntimeError: the disk is full"),
            processes(site(bad, WHO), workers=2) as execute,
        ):
            next(federate(start, todo, execute))
        assert multiprocessing.active_children() == []
    else:
        with pytest.raises(FederationError, match=r"client 'c1' failed in round 1: RuntimeError: the disk is full"):
            next(federate(start, todo, serial(site(bad, WHO))))


class Broken:
    """An objective of somebody whose disk is full."""

    def __call__(self, net: DualNet, x: Tensor, y: Tensor, generator: Generator) -> float:
        raise RuntimeError("the disk is full")


class Killed:
    """An objective during which the operating system kills the process, as it does when memory runs out."""

    def __call__(self, net: DualNet, x: Tensor, y: Tensor, generator: Generator) -> float:
        os.kill(os.getpid(), signal.SIGKILL)
        return 0.0


def killed_in(method: Method) -> None:
    with (
        pytest.raises(FederationError, match=r"ended \(exit code -9\) .* use fewer workers"),
        processes(site(method, WHO), workers=2) as execute,
    ):
        todo = replace(PLAN, method=method)
        state = initial_state(site(method, WHO).net, todo)
        if method is METHOD:
            victim = multiprocessing.active_children()[0]
            assert victim.pid is not None
            os.kill(victim.pid, signal.SIGKILL)
            victim.join()
        next(federate(state, todo, execute))
    assert multiprocessing.active_children() == []


def test_a_worker_killed_in_the_middle_of_a_job_is_reported() -> None:
    killed_in(replace(METHOD, st=Killed()))


def test_a_worker_killed_between_jobs_is_reported() -> None:
    killed_in(METHOD)


def test_clients_compute_with_one_thread_and_the_setting_is_put_back() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with one_thread():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_the_global_random_state_is_neither_used_nor_moved() -> None:
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    first = states(serial(site(METHOD, WHO)))[-1]
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(6)
    second = states(serial(site(METHOD, WHO)))[-1]
    assert all(torch.equal(tensor, second.shared[name]) for name, tensor in first.shared.items())
