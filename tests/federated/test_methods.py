"""Methods as values, and their options from the config."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from federated.tiny import clients, network, plan
from fedrbn.attacks import PGD
from fedrbn.config import ConfigError, MethodConfig
from fedrbn.federated.aggregation.layout import Local
from fedrbn.federated.methods import METHODS, FineTuning, Method, fatavg, fatbn, fedrbn
from fedrbn.federated.objectives import Adversarial, Calibrated, Fractional, Mart, Objective, OneStep, Standard, Trades
from fedrbn.federated.options import configure, settings
from fedrbn.federated.propagation import Propagation, Weighting
from fedrbn.federated.training.affine import AffineTraining
from fedrbn.federated.training.free import Free
from fedrbn.federated.training.meta import Meta
from fedrbn.federated.training.sgd import Sgd, Training
from fedrbn.nets.dual_bn import Affine
from fedrbn.types import Branch, Role

ATTACK = PGD()


def test_the_rows_of_the_table() -> None:
    rows = {name: make(ATTACK) for name, make in METHODS.items()}
    none, norm, everything = Local.NOTHING, Local.BATCH_NORM, Local.EVERYTHING
    table: dict[str, tuple[bool, Local, Training, Branch]] = {
        "fedrbn": (True, norm, Sgd(), Branch.NOISED),
        "fedrbn+": (True, norm, Sgd(), Branch.CLEAN),
        "fedavg": (False, none, Sgd(), Branch.CLEAN),
        "fedbn": (False, norm, Sgd(), Branch.CLEAN),
        "fatavg": (False, none, Sgd(), Branch.CLEAN),
        "fatprox": (False, none, Sgd(1e-3), Branch.CLEAN),
        "fatbn": (False, norm, Sgd(), Branch.CLEAN),
        "fatavg+dbn": (True, none, Sgd(), Branch.NOISED),
        "fatmeta": (False, none, Meta(inner=0.02, meta=0.001), Branch.CLEAN),
        "fedrob": (False, none, Sgd(), Branch.CLEAN),
        "local-at": (False, everything, Sgd(), Branch.CLEAN),
        "fedrbn-noprop": (True, norm, Sgd(), Branch.NOISED),
        "fatavg-free": (False, none, Sgd(), Branch.CLEAN),
        "fatbn-free": (False, norm, Sgd(), Branch.CLEAN),
        "finetune": (False, none, Sgd(), Branch.CLEAN),
    }
    assert {name: (m.dual_bn, m.local, m.training, m.predict) for name, m in rows.items()} == table
    assert [m.name for m in rows.values()] == list(METHODS)
    assert [name for name, m in rows.items() if not m.adversarial] == ["fedavg", "fedbn"]
    assert [name for name, m in rows.items() if m.propagation is not None] == ["fedrbn", "fedrbn+"]
    assert [name for name, m in rows.items() if m.calibration is not None] == ["fedrbn", "fedrbn+"]
    assert rows["fedrbn"].propagation == Propagation(Weighting.COSINE, 0.01)
    assert rows["fedrbn"].calibration == Calibrated(0.5, None)
    assert rows["fedrbn+"].calibration == OneStep(0.5, ATTACK.eps, (0.0, 1.0), 0.9)


def test_who_minimises_what() -> None:
    method = fedrbn(ATTACK)
    assert method.objective(Role.AT.duty, calibrate=False) == Adversarial(ATTACK)
    assert method.objective(Role.ST.duty, calibrate=False) == Standard()
    assert method.objective(Role.ST.duty, calibrate=True) == Calibrated(0.5)
    assert fatavg(ATTACK).objective(Role.ST.duty, calibrate=True) == Standard()


def test_branches_are_those_that_differ() -> None:
    assert fedrbn(ATTACK).branches == (Branch.CLEAN, Branch.NOISED)
    assert fatbn(ATTACK).branches == (Branch.CLEAN,)


def test_every_option_reaches_its_place() -> None:
    config = MethodConfig(
        lam=0.25,
        weighting="uniform",
        temperature=0.5,
        affine="separate",
        local="bn-stats",
        warmup=11,
        clip=10.0,
        mu=0.1,
        predict="clean",
    )
    assert configure(config, ATTACK) == replace(
        fedrbn(ATTACK),
        calibration=Calibrated(0.25, 10.0),
        propagation=Propagation(Weighting.UNIFORM, 0.5),
        affine=Affine.SEPARATE,
        local=Local.STATISTICS,
        warmup=11,
        training=Sgd(0.1),
        predict=Branch.CLEAN,
    )


def test_options_left_open_keep_the_methods_own() -> None:
    for name, make in METHODS.items():
        assert configure(MethodConfig(name=name), ATTACK) == make(ATTACK)


def test_zero_and_off_are_values_not_absence() -> None:
    assert configure(MethodConfig(lam=0.0), ATTACK).calibration == Calibrated(0.0)
    assert configure(MethodConfig(name="fatprox", mu=0.0), ATTACK).training == Sgd(0.0)
    assert configure(MethodConfig(clip="off"), ATTACK).calibration == Calibrated(0.5, None)


def test_options_of_the_at_users_loss_reach_their_place() -> None:
    def at(**wanted: object) -> Objective:
        return configure(MethodConfig.model_validate({"name": "fatbn", **wanted}), ATTACK).at

    assert at(at_loss="trades") == Trades(ATTACK, beta=6.0)
    assert at(at_loss="mart", beta=1.5) == Mart(ATTACK, beta=1.5)
    assert at(at_share=0.5) == Fractional(Adversarial(ATTACK), 0.5)
    assert at(at_share=0.5, at_loss="trades", beta=0.0) == Fractional(Trades(ATTACK, 0.0), 0.5)
    assert at(at_share=1.0) == at(at_loss="ce") == Adversarial(ATTACK)


def test_options_of_the_other_methods_reach_their_place() -> None:
    def made(name: str, **wanted: object) -> Method:
        return configure(MethodConfig.model_validate({"name": name, **wanted}), ATTACK)

    assert made("fatmeta", inner_lr=0.1, meta_lr=0.2).training == Meta(0.1, 0.2)
    assert made("fatbn-free", replays=4).at_training == Free(8 / 255, 4)
    assert made("fedrob", affine_lr=0.1, gamma=2.0, affine_steps=3).at_training == AffineTraining(0.1, 2.0, 3)
    assert made("finetune", ft_iterations=20, freeze=3).fine_tuning == FineTuning(20, 3)
    assert made("finetune").fine_tuning == FineTuning(200, 0)
    assert made("fedrbn", logits="calibrated").class_prior
    assert not made("fedrbn", logits="plain").class_prior


def test_each_option_is_kept_in_the_resolved_config() -> None:
    wanted = {"name": "fatavg", "at_loss": "mart", "beta": 2.0, "at_share": 0.5, "logits": "calibrated"}
    method = configure(MethodConfig.model_validate(wanted), ATTACK)
    assert wanted.items() <= {"name": "fatavg", **settings(method)}.items()
    assert configure(MethodConfig.model_validate({"name": "fatavg", **settings(method)}), ATTACK) == method


def test_a_meta_rate_takes_the_place_of_the_learning_rate() -> None:
    net = METHODS["fatmeta"](ATTACK).network(network())
    who = list(clients((Role.AT, 4)).values())
    assert plan(METHODS["fatmeta"](ATTACK), net, who).schedule.lr(0) == 0.001
    assert plan(fatavg(ATTACK), net, who).schedule.lr(0) == 0.1


@pytest.mark.parametrize(("rounds", "replays", "expected"), [(300, 8, 38), (40, 8, 5), (8, 8, 1), (7, 1, 7)])
def test_free_at_has_fewer_rounds(rounds: int, replays: int, expected: int) -> None:
    """300 / 8 = 37.5: rounded up."""
    method = configure(MethodConfig(name="fatavg-free", replays=replays), ATTACK)
    who = list(clients((Role.AT, 4), (Role.ST, 4)).values())
    assert plan(method, method.network(network()), who, rounds=rounds).schedule.rounds == expected


def test_free_at_within_the_radius_of_the_attack_and_not_of_an_unknown_one() -> None:
    assert METHODS["fatavg-free"](PGD(eps=0.1)).at_training == Free(0.1, replays=4)
    with pytest.raises(ConfigError, match=r"Free AT, which makes its own noise .* Set attack.name to pgd"):
        METHODS["fatavg-free"](lambda loss, x, generator: x)


@pytest.mark.parametrize("name", METHODS)
def test_settings_read_back_to_the_same_method(name: str) -> None:
    """The resolved config of a run holds all options of its method."""
    method = METHODS[name](ATTACK)
    assert configure(MethodConfig.model_validate({"name": name, **settings(method)}), ATTACK) == method


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            MethodConfig(name="fatbn", lam=0.5),
            r"got method\.lam for method 'fatbn', which has no such option; .*local, logits, momentum, mu",
        ),
        (MethodConfig(name="fatavg", predict="noised"), r"method\.predict"),
        (MethodConfig(name="fatavg+dbn", temperature=1.0), r"method\.temperature"),
        (MethodConfig(name="fatavg", clip="off"), r"method\.clip"),
        (MethodConfig(name="fatavg", beta=1.0), r"method\.beta = 1 with method\.at_loss = 'ce'"),
        (MethodConfig(name="fatavg", replays=4), r"method\.replays"),
        (MethodConfig(name="fatavg-free", at_loss="trades"), r"method\.at_loss"),
        (MethodConfig(name="fedrob", at_share=0.5), r"method\.at_share"),
        (MethodConfig(name="fatmeta", mu=0.1), r"method\.mu"),
        (MethodConfig(name="finetune", local="bn"), r"method\.local"),
        (MethodConfig(name="fedrbn-noprop", lam=0.5), r"method\.lam"),
        (MethodConfig(local="nothing"), r"propagation.*local='nothing'; expected .*'bn' or 'bn-stats'"),
        (MethodConfig(local="everything"), r"propagation"),
    ],
)
def test_options_that_make_no_sense_are_refused(config: MethodConfig, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        configure(config, ATTACK)


def test_a_method_with_one_set_of_statistics_cannot_predict_with_the_other() -> None:
    with pytest.raises(ConfigError, match="selected by BN_a; expected a method with dual batch norm"):
        replace(fatavg(ATTACK), predict=Branch.NOISED)


def test_parts_that_do_not_go_together_are_refused() -> None:
    with pytest.raises(ConfigError, match="Free AT and dual batch norm; expected one set of statistics"):
        replace(fedrbn(ATTACK), at_training=Free(0.1))
    with pytest.raises(ConfigError, match="FedRob's training and dual batch norm; expected one set of statistics"):
        replace(fedrbn(ATTACK), at_training=AffineTraining())
    with pytest.raises(ConfigError, match="fine-tuning and local='bn'; expected local='nothing'"):
        replace(fatbn(ATTACK), fine_tuning=FineTuning())


def test_a_misspelt_method_is_named_with_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"got method 'fatprx'.*Did you mean 'fatprox'"):
        configure(MethodConfig(name="fatprx"), ATTACK)


PLUGIN = """
from dataclasses import dataclass, replace
from fedrbn.attacks import PGD
from fedrbn.federated.methods import fedrbn
from fedrbn.federated.objectives import Calibrated

ready = replace(fedrbn(PGD()), name="ready")
wrong = 3

def by_attack(attack):
    return replace(fedrbn(attack), name="mine", propagation=None)

class Space:
    inside = by_attack

@dataclass(frozen=True)
class Own(Calibrated):
    strength: float = 3.0

calibrated = replace(fedrbn(PGD()), name="calibrated", calibration=Own(0.5, 10.0, 7.0))
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "own_methods_for_test.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "own_methods_for_test"


def test_own_methods_by_reference(plugin: str) -> None:
    weak = PGD(steps=1)
    made = configure(MethodConfig(name=f"{plugin}:by_attack", lam=0.75), weak)
    assert isinstance(made, Method)
    assert (made.name, made.at, made.propagation) == ("mine", Adversarial(weak), None)
    assert made.calibration == Calibrated(0.75)
    assert configure(MethodConfig(name=f"{plugin}:ready"), weak).name == "ready"
    assert configure(MethodConfig(name=f"{plugin}:Space.inside"), weak).name == "mine"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("{}:wrong", "which is int; expected .attack. -> fedrbn.Method"),
        ("{}:missing", "has no 'missing'"),
        ("no_such_module_here:x", "module 'no_such_module_here' cannot be imported"),
    ],
)
def test_wrong_references_are_explained(plugin: str, name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        configure(MethodConfig(name=name.format(plugin)), ATTACK)


def test_options_a_plug_in_does_not_have_are_refused(plugin: str) -> None:
    with pytest.raises(ConfigError, match=r"got method\.weighting for method 'mine'"):
        configure(MethodConfig(name=f"{plugin}:by_attack", weighting="uniform"), ATTACK)


def test_a_calibration_of_ones_own_keeps_its_kind_when_options_are_set(plugin: str) -> None:
    name = f"{plugin}:calibrated"
    own = configure(MethodConfig(name=name), ATTACK).calibration
    assert own is not None
    assert type(own) is not Calibrated
    assert configure(MethodConfig(name=name, lam=0.25), ATTACK).calibration == replace(own, lam=0.25)
    assert configure(MethodConfig(name=name, clip="off"), ATTACK).calibration == replace(own, clip=None)


def test_ours_takes_a_weight_and_a_warm_up_but_nothing_to_clip() -> None:
    made = configure(MethodConfig(name="fedrbn+", lam=0.5, warmup=3), ATTACK)
    assert made.calibration == OneStep(0.5, ATTACK.eps)
    assert made.warmup == 3
    with pytest.raises(ConfigError, match=r"got method\.clip for method 'fedrbn\+'"):
        configure(MethodConfig(name="fedrbn+", clip=10.0), ATTACK)
    with pytest.raises(ConfigError, match=r"got attack .* for fedrbn\+, which makes its own noise"):
        METHODS["fedrbn+"](lambda loss, x, generator: x)
