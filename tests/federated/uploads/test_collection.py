"""Clients that fail in every way: the round goes on, nothing bad is counted, and the record says what happened."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from federated.tiny import clients, plan, site
from fedrbn.attacks import PGD
from fedrbn.config import ConfigError, FaultsConfig
from fedrbn.data.samples import Client
from fedrbn.errors import FederationError
from fedrbn.federated.executors.serial import serial
from fedrbn.federated.methods import fatavg, fatavg_dbn, fedrbn
from fedrbn.federated.protocol import Answers, Execute, Failure, Job, Result, Round, ServerState, Train, Upload
from fedrbn.federated.server import Plan, federate, freshness, initial_state
from fedrbn.federated.uploads.collection import TooFewClientsError, in_order, listed
from fedrbn.federated.uploads.quorum import shortage
from fedrbn.types import Role

ATTACK = PGD(eps=0.1, steps=2, step_size=0.06)
AT, ST = Role.AT, Role.ST
MEAN_A = "network.2.noised.running_mean"


def answer(client: str, number: int = 0) -> Result:
    return Answers(client, number, {})


@pytest.mark.parametrize("arrival", ["abc", "cba", "bca", "acb"])
def test_results_are_handed_on_in_the_order_of_the_clients(arrival: str) -> None:
    assert [result.client for result in in_order(map(answer, arrival), "abc", 0)] == ["a", "b", "c"]


def test_results_are_handed_on_as_soon_as_it_is_their_turn() -> None:
    taken: list[str] = []

    def arriving() -> Iterator[Result]:
        for name in "bac":
            taken.append(name)
            yield answer(name)

    next(in_order(arriving(), "abc", 0))
    assert taken == ["b", "a"], "a waits for nobody, b had to wait for a"


def test_late_second_and_strange_answers_are_noted_and_left_out() -> None:
    notes: list[Failure] = []
    first, late, second, stranger = answer("a", 4), answer("b", 3), answer("a", 4), answer("x", 4)
    found = list(in_order([first, late, second, stranger, answer("b", 4)], "abc", 4, notes.append))
    assert found[0] is first
    assert found[1] == answer("b", 4), "a late answer does not stand in for the one that is awaited"
    assert found[2] == Failure("c", 4, "got no answer from client 'c'; expected one from each of 3.")
    assert [(note.client, note.cause.split(";")[0]) for note in notes] == [
        ("b", "got an answer to round 4"),
        ("a", "got a second answer"),
        ("x", "got an answer from a client that was not asked"),
    ]


WHO = clients((AT, 8), (ST, 4), (ST, 4), (AT, 8))


class Almost:
    """Something with the fields that every result has, and no result."""

    client, round = "c0", 0


def changed(**fields: Any) -> Callable[[Upload], object]:
    return lambda upload: replace(upload, **fields)


def with_weight(change: Callable[[torch.Tensor], object]) -> Callable[[Upload], object]:
    def altered(upload: Upload) -> object:
        name = next(iter(upload.shared))
        return replace(upload, shared={**upload.shared, name: change(upload.shared[name])})  # type: ignore[dict-item]

    return altered


WRONG_TYPES: dict[str, Callable[[Upload], object]] = {
    "nothing": lambda _: None,
    "a dictionary": vars,
    "text": lambda _: "done",
    "an error": lambda _: RuntimeError("lost"),
    "a class": lambda _: Upload,
    "almost a result": lambda _: Almost(),
    "a client that is no text": changed(client=["c0"]),
    "a round that is no number": changed(round="0"),
    "a round that no run has": changed(round=10**5000),
    "more samples than Python will write": changed(samples=10**5000),
    "a loss that Python will not write": changed(metrics={"loss": 10**5000}),
    "no tensors": changed(shared=None),
    "a list of tensors": changed(shared=[torch.zeros(1)]),
    "numbers for tensors": changed(personal={MEAN_A: 1.0}),
    "names that are no text": changed(shared={1: torch.zeros(1)}),
    "no metrics": changed(metrics=None),
    "a list of metrics": changed(metrics=[1.0]),
    "text for a metric": changed(metrics={"loss": "low"}),
    "a tensor for a metric": changed(metrics={"loss": torch.tensor(1.0)}),
    "metrics that are not numbers": changed(metrics={"loss": 1.0, "accuracy": math.nan}),
    "metrics without names": changed(metrics={1: 1.0}),
    "samples that are no number": changed(samples="8"),
    "half the precision": with_weight(lambda w: w.half()),
    "twice the precision": with_weight(lambda w: w.double()),
    "whole numbers": with_weight(lambda w: w.int()),
    "complex numbers": with_weight(lambda w: w.to(torch.complex64)),
    "a sparse tensor": with_weight(lambda w: w.to_sparse()),
    "a tensor without values": with_weight(lambda w: w.to("meta")),
    "part of a graph": with_weight(lambda w: w.clone().requires_grad_()),
    "an array": with_weight(lambda w: w.numpy()),
    "answers for an upload": lambda upload: Answers(upload.client, upload.round, {}),
    "answers that are no tensors": lambda upload: Answers(upload.client, upload.round, {"x": [True]}),  # type: ignore[dict-item]
    "a failure without words": lambda upload: Failure(upload.client, upload.round, None),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("fault", WRONG_TYPES)
def test_wrong_types_from_an_executor_are_failures(fault: str) -> None:
    """Client c0's answer has not the form of one: the round goes on without it, and the record says why."""
    todo, start = setting()
    alter = WRONG_TYPES[fault]

    def execute(round_: Round, jobs: Iterable[Job]) -> Iterator[Result]:
        for result in serial(site(todo.method, WHO))(round_, jobs):
            altered = alter(result) if isinstance(result, Upload) and result.client == "c0" else result
            yield altered  # type: ignore[misc]

    _, report = next(federate(start, todo, execute))
    assert report.clients.keys() == {"c1", "c2", "c3"}
    assert {failure.client for failure in report.failures} <= {"c0", "(unknown)"}
    assert all("got " in failure.cause and "expected" in failure.cause for failure in report.failures)


def test_an_executor_that_gives_nothing_at_all() -> None:
    todo, start = setting()
    with pytest.raises(FederationError, match=r"got NoneType from the executor; expected an iterator of results"):
        next(federate(start, todo, lambda *_: None))  # type: ignore[arg-type, return-value]


@settings(max_examples=200, deadline=None)
@given(
    st.one_of(
        st.none(),
        st.integers(),
        st.text(),
        st.lists(st.integers()),
        st.builds(
            Upload,
            *[st.one_of(st.none(), st.text(max_size=3), st.integers(), st.dictionaries(st.text(max_size=2), st.none()))]
            * 6,
        ),
    )
)
def test_whatever_an_executor_yields_is_put_in_order(given_result: Any) -> None:
    notes: list[Failure] = []
    found = list(in_order([given_result, answer("a")], "a", 0, notes.append))
    assert [result.client for result in found] == ["a"]
    assert all(isinstance(result, Upload | Answers | Failure) for result in found)


def setting(faults: FaultsConfig | None = None, method: Callable[[PGD], object] = fedrbn) -> tuple[Plan, ServerState]:
    chosen = method(ATTACK)
    net = site(chosen, WHO).net  # type: ignore[arg-type]
    todo = replace(plan(chosen, net, list(WHO.values()), rounds=3), faults=faults or FaultsConfig())  # type: ignore[arg-type]
    return todo, initial_state(net, todo)


def faulty(change: Callable[[Result], Iterable[Result]], todo: Plan) -> Execute:
    """Clients that train properly; what becomes of their answers is up to `change`."""
    bare = serial(site(todo.method, WHO))

    def execute(round_: Round, jobs: Iterable[Job]) -> Iterator[Result]:
        for result in bare(round_, jobs):
            yield from change(result)

    return execute


def without(*gone: str) -> Callable[[Result], Iterable[Result]]:
    return lambda result: [] if result.client in gone else [result]


def poisoned(result: Result) -> list[Result]:
    assert isinstance(result, Upload)
    return [replace(result, shared={name: tensor * math.nan for name, tensor in result.shared.items()})]


FAULTS: dict[str, tuple[Callable[[Result], Iterable[Result]], str]] = {
    "raises": (lambda r: [Failure(r.client, r.round, "RuntimeError: out of coffee")], "out of coffee"),
    "never answers": (lambda _: [], "got no answer from client 'c1'"),
    "answers late": (lambda r: [replace(r, round=r.round - 1)], "got an answer to round"),
    "sends NaN": (poisoned, "NaN or infinite"),
    "claims a billion samples": (lambda r: [replace(r, samples=10**9)], "got 1000000000 samples"),
    "answers another question": (lambda r: [Answers(r.client, r.round, {})], "got Answers from 'c1'; expected an Up"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_round_goes_on_without_a_client_that_fails(fault: str) -> None:
    """Its update is as if it had not been asked at all, and it is in the report with round and cause."""
    change, cause = FAULTS[fault]
    todo, start = setting()
    state, report = next(
        federate(start, todo, faulty(lambda result: change(result) if result.client == "c1" else [result], todo))
    )
    (failure, *rest) = report.failures
    assert (failure.client, failure.round) == ("c1", 0)
    assert cause in failure.cause
    assert all("got no answer" in other.cause for other in rest), "of one who is late it is said that no answer came"
    assert listed(report.failures)[0] == {"client": "c1", "round": 1, "cause": failure.cause}
    assert list(report.clients) == ["c0", "c2", "c3"]
    assert state.reported == dict.fromkeys(("c0", "c2", "c3"), 1)
    expected, _ = next(federate(start, todo, faulty(without("c1"), todo)))
    for name, tensor in state.shared.items():
        assert torch.equal(tensor, expected.shared[name])
        assert torch.isfinite(tensor).all()
    own = {name: tensor for name, tensor in state.personal["c1"].items() if ".noised." not in name}
    assert all(torch.equal(tensor, start.personal["c1"][name]) for name, tensor in own.items())


def test_who_answers_twice_counts_once() -> None:
    todo, start = setting()
    state, report = next(federate(start, todo, faulty(lambda result: [result, result], todo)))
    alone, _ = next(federate(start, todo, faulty(lambda result: [result], todo)))
    assert all(torch.equal(tensor, alone.shared[name]) for name, tensor in state.shared.items())
    assert [failure.client for failure in report.failures] == list(WHO)
    assert {failure.cause for failure in report.failures} == {
        "got a second answer; expected one. The first one counts."
    }


def test_no_failure_leaves_no_trace() -> None:
    todo, start = setting()
    _, report = next(federate(start, todo, serial(site(todo.method, WHO))))
    assert report.failures == ()


def uploading(values: dict[str, float], who: dict[str, Client] = WHO) -> Execute:
    """Clients whose weights are all the same number; those without one fail."""

    def execute(round_: Round, jobs: Iterable[Job]) -> Iterator[Result]:
        for job in jobs:
            assert isinstance(job, Train)
            if job.client not in values:
                yield Failure(job.client, round_.number, "gone")
                continue
            value = values[job.client]
            kept = {MEAN_A, "network.2.noised.running_var"} if job.role is ST else set()
            shared = {
                k: torch.full_like(v, abs(value) if "var" in k else value)
                for k, v in round_.shared.items()
                if k not in kept
            }
            own = {k: v for k, v in job.personal.items() if not (job.role is ST and ".noised." in k)}
            yield Upload(job.client, round_.number, shared, own, len(who[job.client].train), {"loss": 1.0})

    return execute


def test_the_mean_of_those_that_are_left_is_renormalised() -> None:
    """θ_k = 1, 2, 3, 4 with 8, 4, 4, 8 samples. Without c1: (8·1 + 4·3 + 8·4) / 20 = 2.6, not / 24 = 2.1667.

    BN_a is averaged over AT users only: without c0 it is c3's alone, 4, not 8·4 / 16 = 2.
    """
    values = {"c0": 1.0, "c1": 2.0, "c2": 3.0, "c3": 4.0}
    todo, start = setting(method=fatavg_dbn)
    after, _ = next(federate(start, todo, uploading({k: v for k, v in values.items() if k != "c1"})))
    torch.testing.assert_close(after.shared["network.1.weight"], torch.full((3, 4), 2.6))
    after, _ = next(federate(start, todo, uploading({k: v for k, v in values.items() if k != "c0"})))
    torch.testing.assert_close(after.shared[MEAN_A], torch.full((3,), 4.0))


def test_dropping_clients_at_random_does_not_bias_the_mean() -> None:
    """With equal samples the mean over all ways to lose clients is the mean of all.

    Each client is in the same number of the C(4, m) subsets of size m, C(3, m − 1) of them, with weight 1/m there:
    Σ_S mean_S / C(4, m) = Σ_k θ_k · C(3, m − 1) / (m · C(4, m)) = Σ_k θ_k / 4.
    """
    who = clients((AT, 6), (ST, 6), (ST, 6), (AT, 6))
    method = fatavg(ATTACK)
    net = site(method, who).net
    todo = replace(plan(method, net, list(who.values())), faults=FaultsConfig(min_clients=1))
    start = initial_state(net, todo)
    values = {"c0": 1.0, "c1": -2.0, "c2": 0.5, "c3": 4.0}

    for size in (1, 2, 3, 4):
        means = []
        for subset in itertools.combinations(values, size):
            state, report = next(federate(start, todo, uploading({name: values[name] for name in subset}, who)))
            assert len(report.failures) == 4 - size
            means.append(state.shared["network.1.weight"][0, 0].item())
        assert sum(means) / len(means) == pytest.approx(3.5 / 4)


@pytest.mark.parametrize(
    ("fewest", "gone", "missing"),
    [
        (0.5, "c0 c1", None),
        (0.5, "c0 c3", "0 of 2 AT users; expected at least 1"),
        (0.75, "c1", "1 of 2 ST users; expected at least 2"),
        (1.0, "c0", "1 of 2 AT users; expected at least 2"),
        (2, "c0 c3", None),
        (3, "c0 c3", "2 of 4 clients; expected at least 3"),
        (1, "c0 c1 c2 c3", "0 of 4 clients; expected at least 1"),
    ],
)
def test_how_many_answers_finish_a_round(fewest: float, gone: str, missing: str | None) -> None:
    """c0 and c3 are AT users. A share is wanted of each role, a number of all together."""
    todo, start = setting(FaultsConfig(min_clients=fewest))
    execute = faulty(without(*gone.split()), todo)
    if missing is None:
        assert next(federate(start, todo, execute))[0].round == 1
        return
    few = rf"got valid answers from {missing} in round 1 \(faults.min_clients"
    with pytest.raises(TooFewClientsError, match=few) as error:
        next(federate(start, todo, execute))
    assert [failure.client for failure in error.value.failures] == gone.split()
    assert f"client '{gone[:2]}' failed in round 1: got no answer" in str(error.value)
    assert "--resume" in str(error.value)


def test_shares_are_rounded_up_and_numbers_capped_at_who_was_asked() -> None:
    """0.7 of 10 is 7, although 0.7 * 10 > 7 in floating point; a phase of two clients cannot give three."""
    todo, _ = setting(FaultsConfig(min_clients=0.7))
    ten = [replace(todo.members[1], id=str(i)) for i in range(10)]
    assert shortage(todo.faults, ten, {str(i) for i in range(7)}) is None
    assert shortage(todo.faults, ten, {str(i) for i in range(6)}) is not None
    assert shortage(FaultsConfig(min_clients=3), ten[:2], {"0", "1"}) is None
    with pytest.raises(ConfigError, match=r"faults\.min_clients = 5 with 4 clients in a round; expected at most"):
        replace(todo, faults=FaultsConfig(min_clients=5))


def test_waiting_asks_those_that_are_missing_again_until_there_are_enough() -> None:
    todo, start = setting(FaultsConfig(min_clients=1.0, on_too_few="wait", wait_seconds=0.001))
    bare = serial(site(todo.method, WHO))
    asked: list[list[str]] = []

    def recovering(round_: Round, jobs: Iterable[Job]) -> Iterator[Result]:
        jobs = list(jobs)
        asked.append([job.client for job in jobs])
        for result in bare(round_, jobs):
            down = result.client in ("c1", "c2") and len(asked) < (3 if result.client == "c1" else 2)
            yield Failure(result.client, result.round, "rebooting") if down else result

    state, report = next(federate(start, todo, recovering))
    assert asked == [["c0", "c1", "c2", "c3"], ["c1", "c2"], ["c1"]]
    assert sorted(report.clients) == list(WHO)
    assert [failure.client for failure in report.failures] == ["c1", "c2"], "each cause once, however often it came"
    whole, _ = next(federate(start, todo, bare))
    for name, tensor in state.shared.items():
        torch.testing.assert_close(tensor, whole.shared[name])  # summed in another order


def test_a_donor_that_is_gone_keeps_its_statistics_and_their_age_and_fades() -> None:
    """c0 answers in round 1 only: after three rounds it has missed two. At a half-life of 2 it counts ½."""
    todo, start = setting(FaultsConfig(stale_half_life=2.0))
    (first, _), _, (state, _) = federate(
        start, todo, faulty(lambda result: [] if result.client == "c0" and result.round else [result], todo)
    )
    assert state.reported == {"c0": 1, "c1": 3, "c2": 3, "c3": 3}
    assert torch.equal(state.personal["c0"][MEAN_A], first.personal["c0"][MEAN_A])
    assert state.missed == {"c0": 2}
    assert freshness(state, todo, []).fading == {"c0": 0.5}
    assert todo.method.propagation is not None
    fresh = todo.method.propagation.weights(state.personal, ["c1"], ["c0", "c3"], todo.names.batch_norms)[0]
    faded = fresh * torch.tensor([0.5, 1.0], dtype=torch.float64)
    expected = faded @ torch.stack([state.personal[donor][MEAN_A] for donor in ("c0", "c3")]).double() / faded.sum()
    torch.testing.assert_close(state.personal["c1"][MEAN_A], expected.float())


def test_a_donor_that_is_back_has_missed_nothing_any_more() -> None:
    """c0 does not answer in round 2, and answers again in round 3."""
    todo, start = setting()
    states = [
        state
        for state, _ in federate(
            start, todo, faulty(lambda result: [] if (result.client, result.round) == ("c0", 1) else [result], todo)
        )
    ]
    assert [state.missed for state in states] == [{}, {"c0": 1}, {}]


def test_a_donor_that_was_not_sampled_has_missed_nothing() -> None:
    todo, start = setting()
    few = replace(todo, participants=2)
    states = [state for state, _ in federate(start, few, serial(site(todo.method, WHO)))]
    assert any(
        state.reported.get("c0", 3) < state.round or state.reported.get("c3", 3) < state.round for state in states
    )
    assert all(state.missed == freshness(state, few, []).fading == {} for state in states)


def test_a_donor_is_never_forgotten_altogether() -> None:
    todo, start = setting(FaultsConfig(stale_half_life=0.001))
    assert freshness(replace(start, round=99, reported={"c0": 1, "c3": 99}, missed={"c0": 98}), todo, []).fading == {
        "c0": 1e-12
    }
