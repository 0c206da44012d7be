from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from typer.testing import CliRunner

from federated import tiny as small
from fedrbn import config, nets
from fedrbn.attacks import PGD
from fedrbn.cli import app
from fedrbn.config import AtUsers, Experiment
from fedrbn.cost.count import (
    Counter,
    Traffic,
    actual_macs,
    actual_macs_of,
    cost,
    cost_of,
    padded,
    paper_forward_macs,
    paper_macs,
    seen,
    traffic,
    without_images,
)
from fedrbn.cost.paper import free_at_total, setting
from fedrbn.data.samples import Federation
from fedrbn.federated.assemble import Assembly, assemble
from fedrbn.federated.client import batches
from fedrbn.federated.methods import METHODS
from fedrbn.federated.objectives import Calibrated, Standard
from fedrbn.federated.options import configure
from fedrbn.federated.protocol import Train, Upload
from fedrbn.federated.server import initial_state, round_of
from fedrbn.nets.dual_bn import dual
from fedrbn.nets.state import tensors
from fedrbn.types import Role

AT, ST = Role.AT, Role.ST


def assembly(
    *roles_and_counts: tuple[Role, int],
    participants: int | None = None,
    equal_sizes: bool = True,
    method_name: str = "fedrbn",
    **options: object,
) -> Assembly:
    """A method with an attack of two steps on 4 pixels, 3 hidden units, 2 classes, batches of 8."""
    attack = PGD(steps=2)
    method = configure(config.MethodConfig.model_validate({"name": method_name, **options}), attack)
    clients = tuple(small.clients(*roles_and_counts).values())
    net = method.network(small.network())
    plan = small.plan(method, net, clients, participants=participants, batch_size=8)
    federation = Federation(clients, ("d",), {"d": "d"}, ("dark", "bright"), equal_sizes)
    return Assembly(config.make({}), federation, attack, net, replace(plan, equal_sizes=equal_sizes), workers=1)


def test_batch_norm_counts_twice_in_a_forward_pass() -> None:
    """The Digits network puts 64·28² + 64·14² + 128·7² + 2048 + 512 = 71,552 numbers through batch norm."""
    net = dual(nets.build("digits", 10, 1.0, (3, 28, 28), 1))
    assert paper_forward_macs(net, (3, 28, 28)) == 47_767_552 + 2 * 71_552 == 47_910_656
    assert not any(module._forward_hooks for module in net.modules())


@pytest.mark.parametrize(
    ("lam", "standard"),
    [(0.0, 3), (0.5, 6), (1.0, 4)],
)
def test_the_papers_count_of_an_image(lam: float, standard: int) -> None:
    """Forward: 4·3 + 3·2 in linear layers and 2·3 in batch norm, 24. AT with two steps: (2 + 1)·3 forwards."""
    assert paper_macs(assembly((AT, 8), (ST, 8), lam=lam)) == {AT.duty: 24 * 9, ST.duty: 24 * standard}


@pytest.mark.parametrize(("lam", "standard"), [(0.0, 42), (0.5, 12 + 2 * 6 + 2 * 12 + 12), (1.0, 42 + 18)])
def test_the_actual_count_of_an_image(lam: float, standard: int) -> None:
    """Forward 12 + 6 = 18. Backward: the second layer for its weights and its input, 6 + 6; the first for its weights
    only, 12: the pixels need no gradient. In all 42; λ = 1 adds a forward pass through BN_c. PNC does the first layer,
    which comes before any batch norm, once for both branches, forward and backward.

    AT: each of two steps goes forward (18) and back to the pixels, but not to the weights (6 + 12); then both images.
    """
    assert actual_macs(assembly((AT, 8), (ST, 8), lam=lam)) == {AT.duty: 2 * (18 + 18) + 2 * 42, ST.duty: standard}


@pytest.mark.parametrize(
    ("options", "paper", "actual"),
    [
        # A quarter of the batches is adversarial: (216 + 3 · 72) / 4 and (156 + 3 · 42) / 4, rounded to even.
        ({"at_share": 0.25}, 108, 70),
        # TRADES looks at the clean image once more before the attack, and goes only forward.
        ({"at_loss": "trades"}, 216, 156 + 18),
        ({"at_loss": "mart"}, 216, 156),
        # Free AT: forward, backward to the weights and to the pixels (12 more), three times.
        ({"method_name": "fatavg-free", "replays": 3}, 3 * 72, 3 * (42 + 12)),
        # Half of the batches adapt and the other half train: all of them as often as without.
        ({"method_name": "fatmeta"}, 216, 156),
        # FedRob with n steps up: (n + 1)·3 forwards. Λx costs 16, its gradient 16 more; a step up goes forward and back
        # to Λx (36); then the weights train on the shifted image alone, 16 + 42.
        ({"method_name": "fedrob", "affine_steps": 2}, 24 * 9, 2 * (16 + 36 + 16) + 16 + 42),
        ({"method_name": "fedrob"}, 24 * 24, 7 * (16 + 36 + 16) + 16 + 42),
    ],
    ids=str,
)
def test_other_ways_of_adversarial_training(options: dict[str, object], paper: int, actual: int) -> None:
    built = assembly((AT, 8), (ST, 8), **options)  # type: ignore[arg-type]
    assert (paper_macs(built)[AT.duty], actual_macs(built)[AT.duty]) == (paper, actual)


def test_ours_in_both_counts() -> None:
    """Forward and backward twice, the first time to the pixels too (12 more), on nine tenths of the batches; by the
    paper's count 6 forwards, and 3 on the others."""
    built = assembly((AT, 8), (ST, 8), method_name="fedrbn+")
    assert paper_macs(built)[ST.duty] == round(24 * (0.9 * 6 + 0.1 * 3))
    assert actual_macs(built)[ST.duty] == round(0.9 * (42 + 12 + 42) + 0.1 * 42)


def test_ours_is_not_dearer_than_calibration_on_the_papers_network() -> None:
    costs = {}
    for name in ("fedrbn", "fedrbn+"):
        method = configure(config.MethodConfig(name=name), PGD())
        net = method.network(nets.build("digits", 10, 1.0, (3, 28, 28), 1))
        clients = tuple(small.clients((AT, 8), (ST, 8)).values())
        costs[name] = actual_macs_of(net, small.plan(method, net, clients), ST.duty, (3, 28, 28))
    assert costs["fedrbn+"] < costs["fedrbn"]


def test_frozen_layers_are_not_trained() -> None:
    """Fine-tuning of the last layer only: 18 forward, 6 for its weights."""
    assert actual_macs(assembly((AT, 8), (ST, 8), method_name="finetune", freeze=1)) == {AT.duty: 156, ST.duty: 18 + 6}


def test_nobody_calibrates_without_at_users() -> None:
    alone = assembly((ST, 8), (ST, 8), lam=0.5)
    assert paper_macs(alone) == {ST.duty: 72}
    assert actual_macs(alone) == {ST.duty: 42}


@pytest.mark.parametrize("name", ["digits", "resnet18"])
@pytest.mark.parametrize("objective", [Standard(), Calibrated(0.5), Calibrated(1.0, clip=10.0)], ids=str)
def test_counts_like_the_flop_counter(name: str, objective: Standard | Calibrated) -> None:
    """Where PyTorch's own counter can follow (it cannot follow an attack), a MAC is two of its operations."""
    net = dual(nets.build(name, 10, 1 / 8, (3, 32, 32), 1))
    random = torch.Generator().manual_seed(0)
    x, y = torch.rand(3, 3, 32, 32, generator=random), torch.tensor([0, 1, 2])
    own, theirs = Counter(), FlopCounterMode(display=False)
    with own:
        objective(net, x, y, random)
    with theirs:
        objective(net, x, y, random)
    assert 2 * own.macs == theirs.get_total_flops() > 0


def test_an_epoch_of_all_users() -> None:
    """9 images are two batches of 8 on paper, and 9 in truth; a last batch of one is joined to the one before."""
    found = cost_of(assembly((AT, 8), (ST, 9)))
    assert found["macs_per_epoch"] == {"paper": 8 * 216 + 16 * 144, "actual": 8 * 156 + 9 * 60}
    assert found["macs_per_image"] == {"AT": {"paper": 216, "actual": 156}, "ST": {"paper": 144, "actual": 60}}
    assert found["macs_total"] == {count: 2 * macs for count, macs in found["macs_per_epoch"].items()}  # two rounds


def test_a_total_is_that_of_the_rounds_that_are_run() -> None:
    """Two rounds of AT users, then 6 steps of ST users: three epochs of their two batches, frozen below."""
    found = cost_of(assembly((AT, 8), (ST, 16), method_name="finetune", freeze=1, ft_iterations=6))
    assert found["macs_total"] == {"paper": 2 * 8 * 216 + 3 * 16 * 72, "actual": 2 * 8 * 156 + 3 * 16 * 24}
    # Batches per epoch are 1 and 2, 1.5 in the mean, so a round has 2 steps and there are 2 + 3 rounds of one client.
    everything = 4 * (23 + 6 + 6) + 8
    assert found["bytes"]["round"] == {"down": everything, "up": everything}


def test_free_at_divides_the_rounds_by_its_replays() -> None:
    """Two rounds with two replays are one: two passes over 8 images."""
    found = cost_of(assembly((AT, 8), method_name="fatavg-free", replays=2))
    assert found["macs_total"] == found["macs_per_epoch"] == {"paper": 8 * 2 * 72, "actual": 8 * 2 * 54}


def test_sampled_clients_cost_their_share() -> None:
    one, all_four = (assembly(*4 * [(ST, 8)], participants=count) for count in (1, None))
    assert 4 * cost_of(one)["macs_total"]["paper"] == cost_of(all_four)["macs_total"]["paper"]
    assert cost_of(one)["macs_per_epoch"] == cost_of(all_four)["macs_per_epoch"]


def test_unequal_users_run_the_same_number_of_steps() -> None:
    """4, 20 and 36 images are 1, 3 and 5 batches of 8: three steps each, 24 images on paper."""
    plan = assembly((AT, 4), (ST, 20), (ST, 36), equal_sizes=False).plan
    assert [padded(plan, member) for member in plan.members] == [24, 24, 24]
    assert [seen(plan, member) for member in plan.members] == [3 * 4, 20, 3 * 8]
    steps = plan.schedule.steps()
    assert steps is not None
    for member in plan.members:
        drawn = batches(member.samples, 8, steps, torch.Generator().manual_seed(0))
        assert seen(plan, member) == sum(len(batch) for batch in drawn)


def test_bytes_by_hand() -> None:
    """Linear layers 12 + 3 + 6 + 2 floats, w and b 3 + 3, μ and σ² 3 + 3 on each branch, and two counts of 8 bytes.

    ST users do not send BN_a's 6 floats and its count.
    """
    built = assembly((AT, 8), (ST, 8), (ST, 8))
    everything = 4 * (23 + 6 + 12) + 16
    assert traffic(built.net, built.plan.names, AT) == Traffic(down=everything, up=everything)
    assert traffic(built.net, built.plan.names, ST) == Traffic(down=everything, up=everything - 4 * 6 - 8)
    assert cost_of(built)["bytes"] == {
        "client": {"AT": {"down": 180, "up": 180}, "ST": {"down": 180, "up": 148}},
        "round": {"down": 3 * 180, "up": 180 + 2 * 148},
    }


def test_bytes_of_a_round_with_sampled_clients() -> None:
    """Two of four clients, half of them AT users in the mean: (2·180 + 2·148) / 2 up."""
    built = assembly((AT, 8), (AT, 8), (ST, 8), (ST, 8), participants=2)
    assert cost_of(built)["bytes"]["round"] == {"down": 360, "up": 328}


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("name", ["fedrbn", "fatavg", "fatavg+dbn", "fatavg-free", "local-at"])
def test_bytes_are_those_of_the_messages(name: str, role: Role) -> None:
    built = assembly((role, 8), method_name=name)
    state = initial_state(built.net, built.plan)
    job = Train("c0", role.duty, state.personal["c0"], calibrate=False)
    with built.executor() as execute:
        (upload,) = execute(round_of(state, built.plan), [job])
    assert isinstance(upload, Upload)
    assert traffic(built.net, built.plan.names, role) == Traffic(
        down=sum(tensor.nbytes for tensor in (state.shared | job.personal).values()),
        up=sum(tensor.nbytes for tensor in (upload.shared | upload.personal).values()),
    )


def test_counting_leaves_no_trace() -> None:
    built = assembly((AT, 8), (ST, 8))
    before = {name: tensor.clone() for name, tensor in tensors(built.net).items()}
    state = torch.get_rng_state()
    cost_of(built)
    assert all(torch.equal(before[name], tensor) for name, tensor in tensors(built.net).items())
    assert torch.equal(torch.get_rng_state(), state)
    assert all(parameter.requires_grad for parameter in built.net.parameters())


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_a_cost(name: str, tiny: Callable[..., Experiment]) -> None:
    """An ST user's image costs at least a forward and a backward pass, an AT user's not less."""
    found = cost(tiny(method={"name": name}))
    image = {role: count["actual"] for role, count in found["macs_per_image"].items()}
    assert (
        image.get("AT", image["ST"])
        >= image["ST"]
        > 2 * cost(tiny(method={"name": "fatavg"}))["macs_per_image"]["ST"]["actual"] / 3
    )


@pytest.mark.parametrize(
    "federation",
    [
        {},
        {"partition": "dirichlet", "at": ["pen"], "fraction": 0.3},
        {"partition": "label-skew", "at": {"ratio": 0.5, "domains": 2}, "participants": 0.5},
    ],
    ids=["uniform", "dirichlet", "label-skew"],
)
def test_declared_sizes_give_the_federation_of_the_images(
    federation: dict[str, object], tiny: Callable[..., Experiment]
) -> None:
    experiment = tiny(federation=federation, data={"domains": ["texture", "pen"]})
    real, declared = assemble(experiment), without_images(experiment)
    assert declared.plan.members == real.plan.members
    assert declared.federation.image_shape == real.federation.image_shape
    assert (declared.plan.participants, declared.plan.schedule.steps()) == (
        real.plan.participants,
        real.plan.schedule.steps(),
    )
    assert declared.federation.clients[0].train.images.is_meta


def test_no_images_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDRBN_DATA", raising=False)
    for name in ("digits", "office-caltech10"):
        model = {"name": "digits", "width": 1 / 16}
        found = cost(config.make({"data": {"name": name, "image_size": 32}, "model": model}))
        assert found["macs_per_epoch"]["paper"] > found["macs_per_epoch"]["actual"] > 0


def test_own_data_is_counted_too(tiny: Callable[..., Experiment]) -> None:
    alike: dict[str, Any] = {
        "federation": {"validation": 0.25},
        "model": {"name": "digits"},
        "method": {"name": "fedrbn", "clip": "off"},
        "train": {"batch_size": 32},
    }
    experiment = tiny(data={"name": "fedrbn.data.sets.digits_mini:digits_mini"}, **alike)
    assert cost(experiment)["macs_per_epoch"] == cost(tiny(**alike))["macs_per_epoch"]


@pytest.mark.parametrize(
    ("data", "at", "lam", "expected"),
    [
        ("digits", 1.0, 0.5, 7.36),
        ("digits", 0.2, 0.0, 2.21),
        ("digits", 0.2, 0.5, 2.94),
        ("digits", 0.2, 1.0, 2.45),
        ("digits", ("mnist",), 0.5, 2.94),
    ],
)
def test_the_papers_column_for_digits(data: str, at: AtUsers, lam: float, expected: float) -> None:
    """50 users of 111 images (128 with padding) and 47.91 M MACs: 10·24 + 40·6 = 480 units at 20 % and λ = 0.5."""
    built = setting(data, at, lam)
    per_image = paper_macs(built)
    total = sum(per_image[member.duty] * padded(built.plan, member) for member in built.plan.members)
    assert len(built.plan.members) == 50
    assert round(total / 1e12, 2) == expected


def test_the_papers_column_for_domainnet() -> None:
    """30 users of 192 images, 924.4 M MACs; Real has 5 of the users: 5·24 + 25·3 = 195 units at λ = 0."""
    built = setting("domainnet", 0.2, 0.5)
    forward = paper_forward_macs(built.net, built.federation.image_shape)
    batch_norm = 64 * 63**2 + 192 * 31**2 + (384 + 256 + 256) * 15**2 + 2 * 4096
    assert forward == 923_069_120 + 2 * batch_norm
    assert {padded(built.plan, member) for member in built.plan.members} == {192}
    per_image = paper_macs(built)
    assert per_image == {AT.duty: 24 * forward, ST.duty: 6 * forward}
    for at_users, printed in ((30, (127.9, 127.9, 127.9)), (6, (38.4, 51.2, 42.6)), (5, (34.6, 48.0, 39.1))):
        for standard, expected in zip((3, 6, 4), printed, strict=True):
            total = 192 * forward * (24 * at_users + standard * (30 - at_users))
            assert total / 1e12 == pytest.approx(expected, rel=0.01)


def test_the_total_of_free_at() -> None:
    """300 epochs · 50 users · 128 images · 3 passes · 47,910,656 MACs."""
    assert free_at_total() == 300 * 50 * 128 * 3 * 47_910_656
    assert round(free_at_total() / 1e12) == 276


@pytest.mark.parametrize(
    ("name", "replays", "rounds", "printed"), [("fatavg-free", None, 75, 276.0), ("fatbn-free", 8, 38, 279.6)]
)
def test_a_run_of_free_at_at_the_papers_size(name: str, replays: int | None, rounds: int, printed: float) -> None:
    """m replays of 50 users · 128 images · 3 passes · 47,910,656 MACs in 300 / m whole rounds.

    m = 4, the default, divides 300: 75 rounds · 4 are the 300 epochs, so 276.0. m = 8 needs 38 rounds: 304 epochs, so
    275.965 · 304 / 300 = 279.6.
    """
    method = {"name": name} | ({} if replays is None else {"replays": replays})
    experiment = config.make({"data": {"name": "digits"}, "federation": {"at": 1.0}, "method": method})
    built = without_images(experiment, scale="paper")
    assert built.plan.schedule.rounds == rounds
    total = cost_of(built)["macs_total"]["paper"]
    assert total == rounds * (replays or 4) * 50 * 128 * 3 * 47_910_656
    assert round(total / 1e12, 1) == printed


@pytest.mark.slow
def test_the_command_prints_the_papers_column() -> None:
    printed = CliRunner().invoke(app, ["cost", "benchmark", "--scale", "paper"])
    assert printed.exit_code == 0, printed.output
    for number in ("7.36", "2.21", "2.94", "2.45", "276.0"):
        assert number in printed.output
    answer = CliRunner().invoke(app, ["cost", "benchmark", "--json"])
    cells = {(c["data"], c["at"], c["lam"]): c["macs_per_epoch"] for c in json.loads(answer.stdout)["cells"]}
    expected = {("all", None): 127.9, ("20 %", 0.0): 38.4, ("20 %", 0.5): 51.2, ("20 %", 1.0): 42.6}
    expected |= {("real", 0.0): 34.6, ("real", 0.5): 48.0, ("real", 1.0): 39.1}
    for (at, lam), macs in expected.items():
        assert cells["domainnet", at, lam]["paper"] / 1e12 == pytest.approx(macs, rel=0.01)
        assert cells["domainnet", at, lam]["actual"] < cells["domainnet", at, lam]["paper"]


class TestCommand:
    @pytest.fixture
    def file(self, tmp_path: Path) -> Path:
        path = tmp_path / "mine.toml"
        path.write_text('[data]\nname = "digits-mini"\n[model]\nwidth = 0.0625\n', encoding="utf-8")
        return path

    def test_prints_both_counts_and_traffic(self, file: Path) -> None:
        printed = CliRunner().invoke(app, ["cost", str(file), "--set", "train.rounds=7"])
        assert printed.exit_code == 0, printed.output
        once, often = re.findall(r"paper +(\S+) ×10¹² MACs per epoch of all clients, (\S+) in all", printed.output)[0]
        assert float(often) == pytest.approx(7 * float(once), rel=1e-3)
        assert all(text in printed.output for text in ("paper", "actual", "MB down", "MB up"))

    def test_json_is_what_the_function_returns(self, file: Path) -> None:
        printed = CliRunner().invoke(app, ["cost", str(file), "--set", "federation.at=1", "--json"])
        values = {"model": {"width": 0.0625}, "federation": {"at": 1}}
        assert json.loads(printed.stdout) == cost(config.make(values))

    def test_the_papers_sizes_for_ones_own_settings(self, file: Path) -> None:
        """50 users with 128 images at 30 % of 7,430; at 100 % 372 images, 384 with padding."""
        options = ["cost", str(file), "--set", "data.name=digits", "--scale", "paper", "--json"]
        some = json.loads(CliRunner().invoke(app, options).stdout)
        every = json.loads(CliRunner().invoke(app, [*options, "--set", "federation.fraction=1"]).stdout)
        assert every["macs_per_epoch"]["paper"] == 3 * some["macs_per_epoch"]["paper"]

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["nothing.toml"], "expected a TOML file of settings, one of demo, "),
            (["benchmark", "--set", "model.width=0.5"], "which always uses the paper's settings"),
            (["{file}", "--set", "method.lam=0,1"], "got several values for method.lam"),
            (["{file}", "--scale", "paper"], "expected digits or domainnet"),
        ],
    )
    def test_refuses(self, arguments: list[str], message: str, file: Path) -> None:
        printed = CliRunner().invoke(app, ["cost", *(text.format(file=file) for text in arguments)])
        assert message in str(printed.exception)
