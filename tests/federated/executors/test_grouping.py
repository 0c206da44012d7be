"""Clients evaluated together give the answers that each gives alone, and fail one by one."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Generator, Tensor

from federated.tiny import clients, plan, samples, site
from fedrbn.attacks import PGD, Untargeted, attack_named
from fedrbn.attacks.pgd import mia
from fedrbn.data.samples import Samples
from fedrbn.evaluation.accuracy import CONFIDENT, Accuracy
from fedrbn.evaluation.diagnosis import Diagnosis
from fedrbn.federated.aggregation.layout import Local
from fedrbn.federated.executors import grouping, lockstep
from fedrbn.federated.executors.grouping import EvaluationGroups
from fedrbn.federated.executors.host import ClientHost, perform
from fedrbn.federated.executors.serial import serial
from fedrbn.federated.methods import METHODS, Method
from fedrbn.federated.protocol import Answers, Evaluate, Failure, Network, Round
from fedrbn.federated.server import federate, initial_state, round_of
from fedrbn.nets.dual_bn import DualNet
from fedrbn.types import Branch, Role

ATTACK = PGD(eps=0.1, steps=2, step_size=0.06, restarts=2)
WHO = clients((Role.AT, 20), (Role.ST, 9), (Role.ST, 12), (Role.AT, 8), (Role.ST, 5))
WHO["c1"] = replace(WHO["c1"], test=samples(1, 7))  # somebody with hardly anything
WHO["c3"] = replace(WHO["c3"], test=samples(150, 8))  # more than fits into a pass
QUESTIONS = (
    Accuracy(Branch.CLEAN),
    Accuracy(Branch.NOISED, "pgd", Untargeted(ATTACK), adaptive=True),
    Accuracy(CONFIDENT, "mia", Untargeted(mia(eps=0.1, steps=3, step_size=0.05)), adaptive=True, radius=0.1),
    Accuracy(Branch.NOISED, "blur", attack_named("gaussian-noise"), limit=4),
    Accuracy(Branch.NOISED, "lsa", attack_named("lsa:rounds=2"), limit=5),
    Diagnosis(Branch.NOISED, samples=3),
)


def trained(method: Method) -> tuple[ClientHost, Round, list[Evaluate]]:
    """A federation after two rounds, and what its clients are asked."""
    host = site(method, WHO)
    todo = plan(method, host.net, list(WHO.values()), rounds=2, batch_size=4)
    *_, (state, _) = federate(initial_state(host.net, todo), todo, serial(host))
    return host, round_of(state, todo), [Evaluate(name, state.personal[name], "test", QUESTIONS) for name in WHO]


METHODS_TOGETHER = {name: METHODS[name](ATTACK) for name in ("fedrbn", "fatbn", "fatavg", "fatavg+dbn")}
METHODS_TOGETHER["bn-stats"] = replace(METHODS["fedrbn"](ATTACK), local=Local.STATISTICS)


@pytest.mark.parametrize("method", METHODS_TOGETHER.values(), ids=METHODS_TOGETHER.keys())
def test_together_clients_answer_what_each_answers_alone(method: Method) -> None:
    host, round_, jobs = trained(method)
    assert max(len(group) for group in EvaluationGroups(host).grouped(round_, jobs)) >= 4, "these do share passes"
    found = {result.client: result for result in serial(host)(round_, jobs)}
    for job in jobs:
        alone, result = perform(host, round_, job), found[job.client]
        assert isinstance(alone, Answers)
        assert isinstance(result, Answers)
        assert list(result.correct) == list(alone.correct), "in the order of the questions"
        assert {k: v.tolist() for k, v in result.correct.items()} == {k: v.tolist() for k, v in alone.correct.items()}


def test_autoattack_gives_every_client_the_images_that_it_finds_alone() -> None:
    """Its parts seed torch's global generator and keep only the images that still stand, for each client its own."""
    pytest.importorskip("pyautoattack")
    host, round_, jobs = trained(METHODS["fedrbn"](ATTACK))
    attack = attack_named("square:queries=15,eps=0.1")
    asked = [replace(job, questions=(Accuracy(Branch.NOISED, "s", attack, adaptive=True, limit=6),)) for job in jobs]
    torch.manual_seed(3)
    before, printed = torch.get_rng_state(), sys.stdout
    found = {result.client: result for result in serial(host)(round_, asked)}
    assert torch.equal(torch.get_rng_state(), before)
    assert sys.stdout is printed
    for job in asked:
        alone, result = perform(host, round_, job), found[job.client]
        assert isinstance(alone, Answers)
        assert isinstance(result, Answers)
        assert {k: v.tolist() for k, v in result.correct.items()} == {k: v.tolist() for k, v in alone.correct.items()}


@pytest.mark.parametrize("name", ["fatmeta", "local-at"])
def test_clients_that_adapt_or_share_nothing_are_evaluated_one_by_one(name: str) -> None:
    host, round_, jobs = trained(METHODS[name](ATTACK))
    groups = list(EvaluationGroups(host).grouped(round_, jobs))
    assert [[part.job.client for part in group] for group in groups] == [[name] for name in WHO]
    assert all(part.job == jobs[part.number] for group in groups for part in group)


def test_questions_about_many_images_stay_with_their_client() -> None:
    """c3 has 150 test images: its first three questions are about all of them, the others about few."""
    host, round_, jobs = trained(METHODS["fatbn"](ATTACK))
    groups = list(EvaluationGroups(host).grouped(round_, jobs))
    asked = [[(p.job.client, QUESTIONS.index(q)) for p in g for q in p.job.questions] for g in groups]  # type: ignore[union-attr]
    assert [("c3", 0), ("c3", 1), ("c3", 2)] in asked
    assert [(client, 4) for client in WHO] in asked
    assert [(client, 0) for client in WHO if client != "c3"] in asked


def test_groups_have_as_many_images_each() -> None:
    """50 clients of 20 images are 1,000: four groups of up to 256, of 12 or 13 clients each."""
    job = Evaluate("c", {}, "test", ())
    parts = [(grouping.JobPart(number, 0, job), 20) for number in range(50)]
    groups = grouping._cut(parts)
    assert [len(group) for group in groups] == [12, 13, 12, 13]
    assert [part.number for group in groups for part in group] == list(range(50))


class FailingOnOne:
    """A question with a bug that only a client with a single image shows."""

    limit = None

    def __call__(self, net: Network, samples: Samples, generator: Generator) -> dict[str, Tensor]:
        x, y = samples.pixels(slice(None))
        right = net.logits(Branch.CLEAN)(x).argmax(1) == y
        if len(x) == 1:
            raise ValueError("one image")
        return {"a": right & (net.logits(Branch.NOISED)(x).argmax(1) == y)}


def test_a_client_that_fails_does_not_take_the_others_with_it() -> None:
    host, round_, jobs = trained(METHODS["fatavg"](ATTACK))
    asked = [replace(job, questions=(Accuracy(Branch.CLEAN), FailingOnOne())) for job in jobs]
    results = {result.client: result for result in serial(host)(round_, asked)}
    line = FailingOnOne.__call__.__code__.co_firstlineno + 4
    assert results.pop("c1") == Failure("c1", 2, f"ValueError: one image (test_grouping.py, line {line})")
    assert results.keys() == WHO.keys() - {"c1"}
    answers = [result.correct for result in results.values() if isinstance(result, Answers)]
    assert [list(each) for each in answers] == [["clean@clean", "a"]] * 4


def test_passes_are_full_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """40 clients of 7 images in passes of at most 30 rows: 280 rows fit into ten passes of 28."""
    monkeypatch.setattr(lockstep, "ROWS", 30)
    host = site(METHODS["fatbn"](ATTACK), clients(*[(Role.ST, 4)] * 40))
    sizes: list[int] = []
    monkeypatch.setattr(DualNet, "through", _noting(DualNet.through, sizes))
    tasks = [lockstep.LockstepTask({}, lambda net: net.logits(Branch.CLEAN)(torch.ones(7, 1, 2, 2)).shape, 1)] * 40
    assert lockstep.in_lockstep(host.net.eval(), tasks) == [torch.Size([7, 2])] * 40
    assert sizes == [28] * 10


def test_a_call_of_many_rows_does_not_wait_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of three first asks about 2 images and then about 40, where 30 fit: one pass for all, then one for each."""
    monkeypatch.setattr(lockstep, "ROWS", 30)
    host = site(METHODS["fatbn"](ATTACK), WHO)
    sizes: list[int] = []
    monkeypatch.setattr(DualNet, "through", _noting(DualNet.through, sizes))

    def question(net: Network) -> list[float]:
        net.logits(Branch.CLEAN)(torch.ones(2, 1, 2, 2))
        many = torch.linspace(0, 1, 160).reshape(40, 1, 2, 2).requires_grad_()
        (gradient,) = torch.autograd.grad(net.logits(Branch.NOISED)(many)[:, 1].sum(), many)
        return gradient.flatten().tolist()

    first, *others = lockstep.in_lockstep(host.net.eval(), [lockstep.LockstepTask({}, question, 1)] * 3)
    assert sizes == [6, 40, 40, 40]
    assert others == [first, first]
    assert first == question(host.net)


def _noting(through: object, sizes: list[int]) -> object:
    def noted(net: DualNet, x: Tensor, normalise: object) -> Tensor:
        sizes.append(len(x))
        return through(net, x, normalise)  # type: ignore[operator, no-any-return]

    return noted


def test_nothing_is_left_running_when_somebody_interrupts(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> Iterator[None]:
        raise KeyboardInterrupt

    host = site(METHODS["fatbn"](ATTACK), WHO)
    monkeypatch.setattr(DualNet, "through", interrupted)
    before = threading.active_count()
    task = lockstep.LockstepTask({}, lambda net: net.logits(Branch.CLEAN)(torch.ones(7, 1, 2, 2)), 1)
    with pytest.raises(KeyboardInterrupt):
        lockstep.in_lockstep(host.net.eval(), [task] * 3)
    assert threading.active_count() == before
