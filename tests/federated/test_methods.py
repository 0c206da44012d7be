"""Methods as values, and their options from the config."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fedrbn.attacks import PGD
from fedrbn.config import ConfigError, MethodConfig
from fedrbn.federated.aggregation import Local
from fedrbn.federated.methods import METHODS, Method, configure, fatavg, fatbn, fedrbn, settings
from fedrbn.federated.objectives import Adversarial, Calibrated, Standard
from fedrbn.federated.propagation import Propagation, Weighting
from fedrbn.nets.dual_bn import Affine
from fedrbn.types import Branch, Role

ATTACK = PGD()


def test_the_rows_of_the_table() -> None:
    assert list(METHODS) == ["fedrbn", "fatavg", "fatprox", "fatbn", "fatavg+dbn"]
    rows = {name: make(ATTACK) for name, make in METHODS.items()}
    assert {name: (m.name, m.dual_bn, m.local, m.proximal, m.predict) for name, m in rows.items()} == {
        "fedrbn": ("fedrbn", True, Local.BATCH_NORM, 0.0, Branch.NOISED),
        "fatavg": ("fatavg", False, Local.NOTHING, 0.0, Branch.CLEAN),
        "fatprox": ("fatprox", False, Local.NOTHING, 1e-3, Branch.CLEAN),
        "fatbn": ("fatbn", False, Local.BATCH_NORM, 0.0, Branch.CLEAN),
        "fatavg+dbn": ("fatavg+dbn", True, Local.NOTHING, 0.0, Branch.NOISED),
    }
    assert [name for name, m in rows.items() if m.propagation is not None] == ["fedrbn"]
    assert rows["fedrbn"].propagation == Propagation(Weighting.COSINE, 0.01)
    assert rows["fedrbn"].calibration == Calibrated(0.5, None)


def test_who_minimises_what() -> None:
    method = fedrbn(ATTACK)
    assert method.objective(Role.AT, calibrate=False) == Adversarial(ATTACK)
    assert method.objective(Role.ST, calibrate=False) == Standard()
    assert method.objective(Role.ST, calibrate=True) == Calibrated(0.5)
    assert fatavg(ATTACK).objective(Role.ST, calibrate=True) == Standard()


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
        proximal=0.1,
        predict=Branch.CLEAN,
    )


def test_options_left_open_keep_the_methods_own() -> None:
    for name, make in METHODS.items():
        assert configure(MethodConfig(name=name), ATTACK) == make(ATTACK)


def test_zero_and_off_are_values_not_absence() -> None:
    assert configure(MethodConfig(lam=0.0), ATTACK).calibration == Calibrated(0.0)
    assert configure(MethodConfig(name="fatprox", mu=0.0), ATTACK).proximal == 0.0
    assert configure(MethodConfig(clip="off"), ATTACK).calibration == Calibrated(0.5, None)


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
            r"got method\.lam for method 'fatbn', which has no such part; .*local, mu",
        ),
        (MethodConfig(name="fatavg", predict="noised"), r"method\.predict"),
        (MethodConfig(name="fatavg+dbn", temperature=1.0), r"method\.temperature"),
        (MethodConfig(name="fatavg", clip="off"), r"method\.clip"),
        (MethodConfig(local="nothing"), r"propagation.*local='nothing'; expected .*'bn' or 'bn-stats'"),
        (MethodConfig(local="everything"), r"propagation"),
    ],
)
def test_options_that_make_no_sense_are_refused(config: MethodConfig, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        configure(config, ATTACK)


def test_a_method_with_one_set_of_statistics_cannot_predict_with_the_other() -> None:
    with pytest.raises(ConfigError, match="predicting with BN_a; expected a method with dual batch norm"):
        replace(fatavg(ATTACK), predict=Branch.NOISED)


def test_a_misspelt_method_is_named_with_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"got method 'fedrbm'.*Did you mean 'fedrbn'"):
        configure(MethodConfig(name="fedrbm"), ATTACK)


PLUGIN = """
from dataclasses import replace
from fedrbn.attacks import PGD
from fedrbn.federated.methods import fedrbn

ready = replace(fedrbn(PGD()), name="ready")
wrong = 3

def by_attack(attack):
    return replace(fedrbn(attack), name="mine", propagation=None)

class Space:
    inside = by_attack
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
        ("{}:wrong", "gives int; expected a fedrbn.Method"),
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
