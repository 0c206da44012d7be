"""Algorithm 2: who takes part, what is sent, what is averaged, who gives and receives statistics."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from federated.tiny import clients, network, plan, site
from fedrbn.attacks import PGD
from fedrbn.config import ConfigError, FaultsConfig, TrainConfig
from fedrbn.data.samples import Client
from fedrbn.federated.aggregation.layout import Local
from fedrbn.federated.executors.serial import serial
from fedrbn.federated.methods import Method, fatavg, fatavg_dbn, fatbn, fedrbn
from fedrbn.federated.prediction import predicting_branch, selecting_branch
from fedrbn.federated.protocol import Evaluate, Execute, Job, Result, Round, ServerState, Train, Upload
from fedrbn.federated.server import Plan, donors, federate, initial_state, state_mismatch
from fedrbn.nets.dual_bn import Affine
from fedrbn.nets.state import load
from fedrbn.types import Branch, Member, Role, Tensors

ATTACK = PGD(eps=0.1, steps=2, step_size=0.06)
MEAN_C, MEAN_A = "network.2.clean.running_mean", "network.2.noised.running_mean"


def members(*roles: Role, samples: int = 8) -> dict[str, Client]:
    return clients(*((role, samples) for role in roles))


AT, ST = Role.AT, Role.ST


def trained(method: Method, who: dict[str, Client], **settings: int) -> tuple[Plan, list[ServerState]]:
    """The plan, and the states before the first and after each round."""
    place = site(method, who)
    todo = plan(method, place.net, list(who.values()), **settings)
    first = initial_state(place.net, todo)
    return todo, [first, *(state for state, _ in federate(first, todo, serial(place)))]


def assert_equal(first: Tensors, second: Tensors, names: Iterable[str] | None = None) -> None:
    assert names is not None or first.keys() == second.keys()
    for name in names or first:
        assert torch.equal(first[name], second[name]), name


def with_train(todo: Plan, **settings: object) -> Plan:
    return replace(todo, train=TrainConfig.model_validate(settings))


@pytest.fixture
def ten() -> Plan:
    who = members(*[ST] * 10)
    method = fatavg(ATTACK)
    return plan(method, method.network(network()), list(who.values()), participants=4)


def test_participants_are_sampled_without_replacement_and_by_the_seed(ten: Plan) -> None:
    drawn = [[member.id for member in ten.schedule.sample(number)] for number in range(50)]
    assert all(len(set(ids)) == 4 and ids == sorted(ids) for ids in drawn)
    assert drawn == [[member.id for member in ten.schedule.sample(number)] for number in range(50)]
    assert len({tuple(ids) for ids in drawn}) > 10, "every round draws anew"
    assert {client for ids in drawn for client in ids} == {member.id for member in ten.members}
    assert drawn != [[member.id for member in replace(ten, seed=2).schedule.sample(number)] for number in range(50)]


@pytest.mark.parametrize("participants", [None, 10, 99])
def test_everybody_takes_part_in_the_order_of_the_members(ten: Plan, participants: int | None) -> None:
    assert replace(ten, participants=participants).schedule.sample(0) == list(ten.members)


def test_cosine_schedule(ten: Plan) -> None:
    """lr (1 + cos(π t / R)) / 2 with lr = 0.2 and R = 4: 0.2, 0.1 (1 + √½), 0.1, 0.1 (1 − √½)."""
    cosine = with_train(ten, schedule="cosine", lr=0.2, rounds=4)
    expected = [0.2, 0.1 * (1 + math.sqrt(0.5)), 0.1, 0.1 * (1 - math.sqrt(0.5))]
    assert [cosine.schedule.lr(number) for number in range(4)] == pytest.approx(expected)
    assert [with_train(ten, lr=0.2, rounds=4).schedule.lr(number) for number in range(4)] == [0.2] * 4


def test_unequal_sizes_give_everybody_the_mean_number_of_iterations() -> None:
    """Batches of 4: 8, 9 and 30 images are 2, 2 (4 + 5) and 8 iterations; 12 / 3 = 4 for each epoch."""
    who = clients((ST, 8), (ST, 9), (ST, 30))
    method = fatavg(ATTACK)
    equal = plan(method, method.network(network()), list(who.values()), batch_size=4)
    assert equal.schedule.steps() is None
    unequal = replace(equal, equal_sizes=False)
    assert unequal.schedule.steps() == 4
    assert with_train(unequal, batch_size=4, local_epochs=3).schedule.steps() == 12
    place = site(method, who)
    state = initial_state(place.net, unequal)
    _, report = next(federate(state, unequal, serial(place)))
    assert [metrics["steps"] for metrics in report.clients.values()] == [4, 4, 4]


def uploads(change: Callable[[Train], Result]) -> Execute:
    """An executor that computes nothing: the smallest possible fake of the port."""

    def execute(round_: Round, jobs: Iterable[Job]) -> Iterator[Result]:
        for job in jobs:
            assert isinstance(job, Train)
            yield change(job)

    return execute


def test_fatavg_with_equal_data_is_the_plain_mean_of_the_uploads() -> None:
    who = members(AT, ST, ST)
    method = fatavg(ATTACK)
    place = site(method, who)
    todo = plan(method, place.net, list(who.values()))
    sent: list[Upload] = []

    def noting(round_: Round, jobs: Iterable[Job]) -> Iterator[Result]:
        for result in serial(place)(round_, jobs):
            assert isinstance(result, Upload)
            sent.append(result)
            yield result

    state, _ = next(federate(initial_state(place.net, todo), todo, noting))
    assert len(sent) == 3
    for name, tensor in state.shared.items():
        torch.testing.assert_close(tensor, torch.stack([upload.shared[name] for upload in sent]).mean(0))
    assert MEAN_C in state.shared, "FATAvg averages statistics too"


def test_uploads_weigh_by_the_number_of_training_images() -> None:
    """θ = client number; sizes 8, 4, 4: (8·0 + 4·1 + 4·2) / 16 = 0.75."""
    who = clients((ST, 8), (ST, 4), (ST, 4))
    method = fatavg(ATTACK)
    todo = plan(method, method.network(network()), list(who.values()))
    state = initial_state(method.network(network()), todo)

    def numbered(job: Train) -> Result:
        value = {name: torch.full_like(tensor, int(job.client[1])) for name, tensor in state.shared.items()}
        return Upload(job.client, 0, value, job.personal, len(who[job.client].train), {"loss": 1.0})

    after, _ = next(federate(state, todo, uploads(numbered)))
    for tensor in after.shared.values():
        torch.testing.assert_close(tensor, torch.full_like(tensor, 0.75))


def test_momentum_carries_weights_on_and_leaves_statistics_alone() -> None:
    """All upload 1, then 3, then 3. β = ½: 1; 3 + ½ (1 − θ_0); 3 + ½ (θ_2 − 1). Statistics: 1, 3, 3."""
    who = members(ST, ST)
    method = replace(fatavg(ATTACK), momentum=0.5)
    net = method.network(network())
    todo = plan(method, net, list(who.values()), rounds=3)
    first = initial_state(net, todo)

    def numbered(round_: Round, jobs: Iterable[Job]) -> Iterator[Result]:
        number = (1.0, 3.0, 3.0)[round_.number]
        value = {name: torch.full_like(tensor, number) for name, tensor in first.shared.items()}
        for job in jobs:
            assert isinstance(job, Train)
            yield Upload(job.client, round_.number, value, job.personal, 8, {"loss": 1.0})

    lenient = replace(todo, faults=FaultsConfig(max_update=1e9))
    states = [state for state, _ in federate(first, lenient, numbered)]
    for name, start in first.shared.items():
        second = 3 + 0.5 * (1 - start)
        expected = [torch.ones_like(start), second, 3 + 0.5 * (second - 1)]
        if name.endswith(("running_mean", "running_var")):
            expected = [torch.full_like(start, value) for value in (1.0, 3.0, 3.0)]
            assert all(name not in state.velocity for state in states)
        for state, value in zip(states, expected, strict=True):
            torch.testing.assert_close(state.shared[name], value)
    assert not first.velocity
    for beta in (-0.1, 1.0):
        with pytest.raises(ConfigError, match="expected a number from 0"):
            replace(method, momentum=beta)
    with pytest.raises(ConfigError, match="shares no weights with the server"):
        replace(method, momentum=0.5, local=Local.EVERYTHING)


def test_a_velocity_of_another_network_is_a_misfit() -> None:
    who = members(AT, ST)
    method = replace(fatbn(ATTACK), momentum=0.5)
    todo, (*_, state) = trained(method, who)
    net = method.network(network())
    assert state.velocity.keys() == state.shared.keys()
    assert state_mismatch(state, net, todo) is None
    name = next(iter(state.velocity))
    assert "the velocity" in str(state_mismatch(replace(state, velocity={name: torch.zeros(9, 9)}), net, todo))
    assert "the velocity" in str(state_mismatch(replace(state, velocity={"unknown": torch.zeros(1)}), net, todo))


@pytest.mark.parametrize("select", [None, Branch.CLEAN, Branch.NOISED])
def test_the_branch_that_selects_is_the_one_that_predicts_unless_given(select: Branch | None) -> None:
    todo, (first, *_, last) = trained(replace(fedrbn(ATTACK), select=select), members(AT, ST))
    for member in todo.members:
        assert selecting_branch(todo, first, member) is Branch.CLEAN, "nobody has a BN_a yet"
        assert selecting_branch(todo, last, member) is (select or Branch.NOISED)
        assert predicting_branch(todo, last, member) is Branch.NOISED
    with pytest.raises(ConfigError, match="selected by BN_a"):
        replace(fatavg(ATTACK), select=Branch.NOISED)


def test_fatavg_dbn_averages_bn_a_over_at_uploads_only() -> None:
    who = clients((AT, 6), (ST, 20), (AT, 12))
    method = fatavg_dbn(ATTACK)
    place = site(method, who)
    todo = plan(method, place.net, list(who.values()))
    sent: dict[str, Upload] = {}

    def noting(round_: Round, jobs: Iterable[Job]) -> Iterator[Result]:
        for result in serial(place)(round_, jobs):
            assert isinstance(result, Upload)
            sent[result.client] = result
            yield result

    state, _ = next(federate(initial_state(place.net, todo), todo, noting))
    assert MEAN_A not in sent["c1"].shared
    noised = (6 * sent["c0"].shared[MEAN_A] + 12 * sent["c2"].shared[MEAN_A]) / 18
    torch.testing.assert_close(state.shared[MEAN_A], noised)
    clean = sum(len(who[name].train) * upload.shared[MEAN_C] for name, upload in sent.items()) / 38
    torch.testing.assert_close(state.shared[MEAN_C], clean)


@pytest.mark.parametrize("method", [fatavg(ATTACK), fatavg_dbn(ATTACK), fatbn(ATTACK), fedrbn(ATTACK)])
def test_counts_of_batches_stay_whole_numbers_of_their_client(method: Method) -> None:
    who = clients((AT, 8), (ST, 24))
    todo, (*_, state) = trained(method, who, batch_size=8, rounds=2)
    counts = {name: own["network.2.clean.num_batches_tracked"].item() for name, own in state.personal.items()}
    # a single set of statistics is moved by the clean and by the attacked batch
    assert counts == {"c0": 2 if method.dual_bn else 4, "c1": 6}
    assert not any("num_batches_tracked" in name for name in state.shared)
    assert todo.names.personal >= {"network.2.clean.num_batches_tracked"}


def test_fedrbn_gives_st_users_the_estimate_and_keeps_everybodys_own() -> None:
    _, (first, after, _) = trained(fedrbn(ATTACK), members(AT, ST, ST))
    assert_equal(after.personal["c1"], after.personal["c0"], [MEAN_A])  # one donor: α = 1
    assert_equal(after.personal["c2"], after.personal["c0"], [MEAN_A])
    assert not torch.equal(after.personal["c0"][MEAN_A], first.personal["c0"][MEAN_A])
    assert not torch.equal(after.personal["c1"][MEAN_C], after.personal["c2"][MEAN_C])
    assert not {name for name in after.shared if ".2." in name}, "nothing of batch norm is averaged"


def sampling(todo: Plan, wanted: str, rounds: int = 200) -> int:
    """The first seed whose first round takes exactly this client."""
    return next(
        seed for seed in range(rounds) if [m.id for m in replace(todo, seed=seed).schedule.sample(0)] == [wanted]
    )


def test_at_users_never_sampled_neither_donate_nor_predict_with_bn_a() -> None:
    who = members(AT, AT, ST)
    method = fedrbn(ATTACK)
    place = site(method, who)
    todo = plan(method, place.net, list(who.values()), participants=1, rounds=1)
    todo = replace(todo, seed=sampling(todo, "c0"))
    first = initial_state(place.net, todo)
    assert donors(first, todo) == []
    state, report = next(federate(first, todo, serial(place)))
    assert list(report.clients) == ["c0"]
    assert state.reported == {"c0": 1}
    assert donors(state, todo) == ["c0"]
    assert_equal(state.personal["c2"], state.personal["c0"], [MEAN_A])
    assert_equal(state.personal["c1"], first.personal["c1"])
    branches = [predicting_branch(todo, state, member) for member in todo.members]
    assert branches == [Branch.NOISED, Branch.CLEAN, Branch.NOISED]


def test_nobody_calibrates_before_an_at_user_has_reported_or_in_the_warm_up() -> None:
    who = members(AT, ST)

    def calibrated(method: Method, seed: int = 1, participants: int | None = None) -> list[list[tuple[str, bool]]]:
        place = site(method, who)
        todo = plan(method, place.net, list(who.values()), rounds=4, seed=seed, participants=participants)
        asked: list[list[tuple[str, bool]]] = []

        def noting(round_: Round, jobs: Iterable[Job]) -> Iterator[Result]:
            jobs = list(jobs)
            asked.append([(job.client, job.calibrate) for job in jobs if isinstance(job, Train)])
            return serial(place)(round_, jobs)

        for _ in federate(initial_state(place.net, todo), todo, noting):
            pass
        return asked

    always = calibrated(fedrbn(ATTACK))
    assert always == [[("c0", False), ("c1", False)]] + [[("c0", False), ("c1", True)]] * 3
    warm = calibrated(replace(fedrbn(ATTACK), warmup=3))
    assert [dict(jobs)["c1"] for jobs in warm] == [False, False, False, True]
    assert not any(flag for jobs in calibrated(fatbn(ATTACK)) for _, flag in jobs)


def test_fedrbn_without_st_users_is_local_dual_bn_with_nothing_propagated() -> None:
    who = members(AT, AT)
    _, (*_, with_propagation) = trained(fedrbn(ATTACK), who, rounds=3)
    _, (*_, without) = trained(replace(fedrbn(ATTACK), propagation=None), who, rounds=3)
    assert_equal(with_propagation.shared, without.shared)
    for name in who:
        assert_equal(with_propagation.personal[name], without.personal[name])


def test_fedrbn_without_at_users_is_fatbn() -> None:
    """It predicts with BN_c; weights, statistics and answers are those of FATBN, bit for bit."""
    who = members(ST, ST, ST)
    dual_plan, (*_, dual_state) = trained(fedrbn(ATTACK), who, rounds=3)
    _, (*_, single_state) = trained(fatbn(ATTACK), who, rounds=3)
    assert_equal(dual_state.shared, single_state.shared)
    answers = []
    for method, state in ((fedrbn(ATTACK), dual_state), (fatbn(ATTACK), single_state)):
        net = method.network(network()).eval()
        for name, one in who.items():
            assert_equal(dual_state.personal[name], single_state.personal[name], single_state.personal[name])
            load(net, state.shared)
            load(net, state.personal[name])
            member = next(m for m in dual_plan.members if m.id == name)
            branch = predicting_branch(dual_plan, dual_state, member)
            assert branch is Branch.CLEAN
            x, y = one.test.pixels(slice(None))
            attacked = ATTACK(
                lambda z, net=net, branch=branch, y=y: F.cross_entropy(net(z, branch), y, reduction="none"),
                x,
                torch.Generator().manual_seed(0),
            )
            answers.append([net(x, branch).argmax(1).tolist(), net(attacked, branch).argmax(1).tolist()])
    assert answers[:3] == answers[3:]


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        (fedrbn(ATTACK), [Branch.NOISED, Branch.NOISED]),
        (replace(fedrbn(ATTACK), predict=Branch.CLEAN), [Branch.CLEAN, Branch.CLEAN]),
        (replace(fedrbn(ATTACK), propagation=None), [Branch.NOISED, Branch.CLEAN]),
        (fatavg_dbn(ATTACK), [Branch.NOISED, Branch.NOISED]),
        (replace(fatavg_dbn(ATTACK), local=Local.BATCH_NORM), [Branch.NOISED, Branch.CLEAN]),
        (fatbn(ATTACK), [Branch.CLEAN, Branch.CLEAN]),
    ],
    ids=["fedrbn", "fedrbn-clean", "fedrbn-no-propagation", "dbn", "dbn-local", "fatbn"],
)
def test_who_predicts_with_bn_a(method: Method, expected: list[Branch]) -> None:
    todo = plan(method, method.network(network()), list(members(AT, ST).values()))
    before = initial_state(method.network(network()), todo)
    assert [predicting_branch(todo, before, member) for member in todo.members] == [Branch.CLEAN] * 2
    after = replace(before, round=1, reported={"c0": 1, "c1": 1})
    assert [predicting_branch(todo, after, member) for member in todo.members] == expected


def test_a_separate_affine_goes_with_the_statistics_when_local_and_through_the_mean_when_shared() -> None:
    weight = "network.2.noised.weight"
    separate = replace(fedrbn(ATTACK), affine=Affine.SEPARATE)
    _, (first, local, _) = trained(separate, members(AT, ST))
    assert not torch.equal(local.personal["c0"][weight], first.personal["c0"][weight])
    assert_equal(local.personal["c1"], local.personal["c0"], [weight])
    _, (_, shared, _) = trained(replace(separate, local=Local.STATISTICS), members(AT, ST))
    assert weight not in shared.personal["c1"]
    torch.testing.assert_close(shared.shared[weight], local.personal["c0"][weight])


@pytest.mark.parametrize("method", [fedrbn(ATTACK), fatavg(ATTACK), fatavg_dbn(ATTACK)])
def test_the_seed_decides_everything(method: Method) -> None:
    who = members(AT, ST)
    _, (*_, one) = trained(method, who, seed=1, batch_size=4)
    _, (*_, again) = trained(method, who, seed=1, batch_size=4)
    _, (*_, other) = trained(method, who, seed=2, batch_size=4)
    assert_equal(one.shared, again.shared)
    for name in who:
        assert_equal(one.personal[name], again.personal[name])
    assert not torch.equal(one.shared["network.1.weight"], other.shared["network.1.weight"])


def test_states_are_not_changed_by_later_rounds() -> None:
    who = members(AT, ST)
    _, (_, kept, *_) = trained(fedrbn(ATTACK), who, rounds=1)
    _, (first, after_one, _, _) = trained(fedrbn(ATTACK), who, rounds=3)
    assert_equal(kept.shared, after_one.shared)
    assert_equal(kept.personal["c1"], after_one.personal["c1"])
    assert first.round == 0
    assert first.reported == {}


def test_the_rest_of_a_run_follows_from_any_of_its_states() -> None:
    who = members(AT, ST, ST)
    method = fedrbn(ATTACK)
    todo, (_, _, middle, _, last) = trained(method, who, rounds=4, participants=2)
    *_, (continued, _) = federate(middle, todo, serial(site(method, who, seed=99)))
    assert_equal(continued.shared, last.shared)
    for name in who:
        assert_equal(continued.personal[name], last.personal[name])
    assert continued.reported == last.reported


def test_members_hold_no_data() -> None:
    assert set(Member.__dataclass_fields__) == {"id", "domain", "duty", "samples"}
    assert "train" not in Evaluate.__dataclass_fields__
