"""Experiments: defaults, short forms, errors that name the mistake, TOML in and out, keys."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrbn import config
from fedrbn.config import ConfigError, Dirichlet, Experiment, FirstDomains, from_toml, make, parse_setting, read
from fedrbn.config.text import parse_toml


def test_defaults_are_the_papers() -> None:
    plain = Experiment()
    assert (plain.attack.name, plain.attack.eps, plain.attack.steps, plain.attack.step_size) == (
        "pgd",
        8 / 255,
        7,
        2 / 255,
    )
    assert plain.attack.threat == "pixel"
    assert (plain.train.rounds, plain.train.local_epochs, plain.train.batch_size, plain.train.lr) == (300, 1, 32, 0.01)
    federation = plain.federation
    assert (federation.users_per_domain, federation.fraction, federation.validation, federation.at) == (
        10,
        0.3,
        0.5,
        0.2,
    )


def test_a_data_set_brings_its_own_defaults_and_the_user_has_the_last_word() -> None:
    mini = make({})
    assert (mini.data.name, mini.model.width, mini.federation.users_per_domain) == ("digits-mini", 0.25, 5)
    assert make({"model": {"width": 0.5}}).model.width == 0.5
    assert make({"model": {"width": 0.5}}).federation.users_per_domain == 5, "other sections keep the data's defaults"
    assert make({"federation": {"fraction": 0.5}}).federation.users_per_domain == 5, "and so do other keys"
    assert make({"data": {"name": "digits"}}).model.width == 1.0
    assert make({"data": {"name": "office-caltech10"}}).model.name == "alexnet"


def test_a_data_sets_options_for_fedrbn_are_not_forced_on_methods_without_them() -> None:
    photographs = {"data": {"name": "office-caltech10"}}
    assert make(photographs).method.clip == 10.0
    assert make({**photographs, "method": {"name": "fatavg"}}).method.clip is None
    assert make({**photographs, "method": {"clip": "off"}}).method.clip == "off"


@pytest.mark.parametrize(("text", "value"), [("8/255", 8 / 255), ("1 / 4", 0.25), (0.5, 0.5), ("0.5", 0.5), (0, 0.0)])
def test_epsilon_may_be_written_as_a_fraction(text: object, value: float) -> None:
    assert make({"attack": {"eps": text}}).attack.eps == value


@pytest.mark.parametrize(
    ("at", "expected"),
    [
        (0.2, 0.2),
        (0, 0.0),
        (1, 1.0),
        ("pen", ("pen",)),
        (["pen", "plain-1"], ("pen", "plain-1")),
        ({"ratio": 0.2, "domains": 3}, FirstDomains(ratio=0.2, domains=3)),
        ({"ratio": 0.5, "domains": ["pen"]}, FirstDomains(ratio=0.5, domains=("pen",))),
    ],
)
def test_forms_of_at(at: object, expected: object) -> None:
    assert make({"federation": {"at": at}}).federation.at == expected


def test_named_partitions() -> None:
    sizes = make({"federation": {"partition": "dirichlet"}}).federation.partition
    assert (sizes.sizes, sizes.labels) == (Dirichlet(concentration=1.0), "uniform")
    labels = make({"federation": {"partition": "label-skew"}}).federation.partition
    assert (labels.sizes, labels.labels) == ("uniform", Dirichlet(concentration=0.5))
    assert make({"federation": {"partition": "uniform"}}).federation.partition == config.Partition()
    with pytest.raises(ConfigError, match="got partition 'dirichlett'; expected uniform, dirichlet, label-skew"):
        make({"federation": {"partition": "dirichlett"}})


@pytest.mark.parametrize(("given_value", "expected"), [(4, 4), (0.5, 0.5), (1, 1), (1.0, 1.0), (None, None)])
def test_participants_are_a_number_or_a_share(given_value: object, expected: object) -> None:
    found = make({"federation": {"participants": given_value}}).federation.participants
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"atack": {"eps": 0.1}}, "got 'atack'; expected a section: did you mean 'attack'?"),
        ({"train": {"ronds": 3}}, "got 'ronds'; expected a key of [train]: did you mean 'rounds'?"),
        ({"train": {"zzz": 3}}, "choose from aggregation, at_weight, batch_size"),
        ({"train": {"lr": -1}}, "train.lr: got -1"),
        ({"train": {"lr": float("inf")}}, "train.lr: got inf"),
        ({"train": {"lr": float("nan")}}, "train.lr: got nan"),
        ({"attack": {"eps": "9/0"}}, "attack.eps: got '9/0'"),
        ({"attack": {"eps": "8/255/2"}}, "attack.eps: got '8/255/2'"),
        ({"attack": {"eps": 8}}, "attack.eps: got 8"),
        ({"method": {"lam": 1.5}}, "method.lam: got 1.5"),
        ({"method": {"clip": -1}}, "method.clip: got -1"),
        ({"federation": {"participants": 0}}, "federation.participants: got 0"),
        ({"federation": {"participants": -3}}, "federation.participants: got -3"),
        ({"federation": {"at": 1.5}}, "federation.at: got 1.5"),
        ({"run": {"device": "tpu"}}, "run.device: got 'tpu'"),
        ({"train": 5}, "[train]"),
        ({"data": {"name": ["digits"]}}, "data.name: got ['digits']"),
        ({"rounds": 5}, "got 'rounds'; expected a section"),
    ],
)
def test_wrong_settings_are_explained(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make(values)
    assert message in str(caught.value)


def test_all_mistakes_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        make({"train": {"ronds": 3, "lr": -1}, "attack": {"eps": 2}})
    assert len(str(caught.value).splitlines()) == 3


def test_experiments_are_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Experiment().train.lr = 3.0  # type: ignore[misc]


EVERYTHING = {
    "data": {"name": "digits", "image_size": 28},
    "federation": {
        "at": {"ratio": 0.2, "domains": ["mnist", "svhn"]},
        "partition": {"sizes": {"concentration": 0.7}, "labels": "uniform"},
        "participants": 0.5,
    },
    "attack": {"eps": "8/255", "threat": "authors-release"},
    "method": {"clip": "off", "lam": 0.0, "affine": "separate"},
    "run": {"seed": 7, "out": 'runs/"quoted" \\ ε'},
}


@pytest.mark.parametrize("values", [{}, EVERYTHING, {"federation": {"participants": 1.0, "at": "pen"}}])
def test_toml_round_trip(values: dict[str, Any]) -> None:
    experiment = make(values)
    again = from_toml(experiment.to_toml())
    assert again == experiment
    assert again.key() == experiment.key()
    assert type(again.federation.participants) is type(experiment.federation.participants)


def test_a_resolved_experiment_is_not_filled_in_from_data_defaults_again() -> None:
    experiment = make({"data": {"name": "office-caltech10"}, "method": {"name": "fatavg"}})
    assert from_toml(experiment.to_toml()).method.clip is None
    assert from_toml("").federation.users_per_domain == 10, "digits-mini's own 5 is filled in by make only"


def test_the_key_is_of_what_decides_the_numbers() -> None:
    base = make({})
    assert len(base.key()) == 12
    assert make({"run": {"workers": 7, "out": "elsewhere"}}).key() == base.key()
    changed = [{"run": {"seed": 2}}, {"train": {"lr": 0.02}}, {"attack": {"steps": 8}}, {"method": {"lam": 0.5}}]
    assert len({base.key(), *(make(values).key() for values in changed)}) == 1 + len(changed)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("method.lam=0.5", ("method", "lam", [0.5])),
        ("method.lam=0,0.5,1", ("method", "lam", [0, 0.5, 1])),
        ("method.name=fatavg+dbn", ("method", "name", ["fatavg+dbn"])),
        ("method.weighting=cosine, uniform", ("method", "weighting", ["cosine", "uniform"])),
        ("attack.eps=8/255", ("attack", "eps", ["8/255"])),
        ("attack.eps=4/255,8/255", ("attack", "eps", ["4/255", "8/255"])),
        ('federation.at=["pen", "plain"]', ("federation", "at", [["pen", "plain"]])),
        ("federation.at={ratio=0.2,domains=3}", ("federation", "at", [{"ratio": 0.2, "domains": 3}])),
        ('run.out="a,b"', ("run", "out", ["a,b"])),
        ("run.out='a,b'", ("run", "out", ["a,b"])),
        ("run.out=a=b", ("run", "out", ["a=b"])),
        (" train.lr = 1e-3 ", ("train", "lr", [1e-3])),
        ("run.out=", ("run", "out", [""])),
    ],
)
def test_settings_of_the_command_line(text: str, expected: tuple[str, str, list[Any]]) -> None:
    assert parse_setting(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lam=0.5", "expected section.key=value"),
        ("method.lam", "expected section.key=value"),
        ("method.=1", "expected section.key=value"),
        ("", "expected section.key=value"),
        ("methd.lam=0.5", "did you mean 'method'?"),
    ],
)
def test_wrong_settings_of_the_command_line(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_setting(text)
    assert message in str(caught.value)


def test_settings_go_on_top_of_a_file() -> None:
    file = {"train": {"rounds": 3, "lr": 0.5}}
    merged = config.with_settings(file, [("train", "rounds", 9), ("method", "lam", 0.5), ("train", "rounds", 10)])
    assert merged == {"train": {"rounds": 10, "lr": 0.5}, "method": {"lam": 0.5}}
    assert file == {"train": {"rounds": 3, "lr": 0.5}}


def test_a_key_outside_of_a_section_is_refused_with_settings_on_top_too() -> None:
    with pytest.raises(ConfigError, match=r"\[train\]"):
        make(config.with_settings({"train": 5}, [("train", "rounds", 3)]))
    with pytest.raises(ConfigError, match="got 'lr'; expected a section"):
        make(config.with_settings({"lr": 0.5}, [("train", "rounds", 3)]))


def test_reading_a_file(tmp_path: Path) -> None:
    good, bad, binary = tmp_path / "good.toml", tmp_path / "bad.toml", tmp_path / "binary.toml"
    good.write_text("[train]\nrounds = 3\n")
    bad.write_text("[train\nrounds = 3\n")
    binary.write_bytes(b"\xff\xfe\x00")
    assert read(good) == {"train": {"rounds": 3}}
    with pytest.raises(ConfigError, match="not TOML"):
        read(bad)
    for path in (binary, tmp_path / "missing.toml", tmp_path):
        with pytest.raises(ConfigError, match="cannot be read"):
            read(path)


@pytest.mark.parametrize("text", ["a = " + "[" * 5000, "a = " + "1" * 5000, "a = 2000-99-99", "\x00"])
def test_hostile_text_is_refused_like_any_other(text: str) -> None:
    with pytest.raises(ConfigError):
        from_toml(text)


def test_the_reference_explains_every_setting() -> None:
    rows = {(section, key): (default, meaning) for section, key, default, meaning in config.reference()}
    assert rows["method", "lam"] == ("not set", "λ of Eq. 5, the weight of the calibration loss of ST users.")
    assert rows["train", "rounds"][0] == "300"
    assert len(rows) == sum(len(section) for section in Experiment().model_dump().values())


NAMES = st.sampled_from(
    [*Experiment.model_fields]
    + [key for field in Experiment.model_fields.values() for key in field.annotation.model_fields]  # type: ignore[union-attr]
    + ["ratio", "domains", "concentration", "sizes"]
) | st.text(max_size=5)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["8/255", "1/0", "digits", "off"])
    | st.dates()
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=8
)


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(NAMES, VALUES | st.dictionaries(NAMES, VALUES, max_size=4), max_size=4))
def test_whatever_the_settings_only_config_errors_are_raised(values: dict[str, Any]) -> None:
    with contextlib.suppress(ConfigError):
        experiment = make(config.with_settings(values, [("run", "seed", 1)]))
        assert from_toml(experiment.to_toml()) == experiment


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=40) | st.tuples(NAMES, NAMES, st.text(max_size=20)).map(lambda t: f"{t[0]}.{t[1]}={t[2]}"))
def test_whatever_the_text_only_config_errors_are_raised(text: str) -> None:
    with contextlib.suppress(ConfigError):
        section, key, values = parse_setting(text)
        assert values
        for value in values:
            make(config.with_settings({}, [(section, key, value)]))


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=60))
def test_whatever_the_toml_only_config_errors_are_raised(text: str) -> None:
    with contextlib.suppress(ConfigError):
        from_toml(text)


@pytest.mark.parametrize(
    "text",
    [
        ".".join(["a"] * 20_000) + " = 1",
        "[" + " . ".join(["a"] * 20_000) + "]",
        "x = {" + ".".join(['"a"'] * 20_000) + " = 1}",
    ],
    ids=["key", "section", "inline table"],
)
def test_keys_of_very_many_parts_are_refused_before_they_are_read(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("tomllib.loads")  # it needs quadratic time for them
    with pytest.raises(ConfigError, match="key of more than 32 parts; expected a section and a setting"):
        from_toml(text)


def test_dots_in_values_and_comments_are_no_parts() -> None:
    dots = "." * 50
    assert parse_toml(f"x = '{dots}' # {dots}") == {"x": dots}


def test_a_folder_gets_settings_that_fit_photographs(tmp_path: Path) -> None:
    found = make({"data": {"name": str(tmp_path)}})
    assert (found.model.name, found.model.width, found.data.image_size) == ("resnet18", 0.25, 64)
    assert (found.federation.fraction, found.federation.validation) == (1.0, 0.2)
    assert (found.federation.users_per_domain, found.federation.at) == (2, 0.5)  # one user of each domain is AT
    assert found.method.clip == 10
    assert make({"data": {"name": str(tmp_path / "none")}}).model.name == "digits"  # loading says that it is missing


def test_other_settings_win_and_the_width_goes_with_its_network(tmp_path: Path) -> None:
    name = {"name": str(tmp_path)}
    own = make({"data": {**name, "image_size": 32}, "model": {"name": "own:Net"}, "method": {"name": "fatavg"}})
    assert (own.data.image_size, own.model.width, own.method.clip) == (32, 1.0, None)
    assert make({"data": name, "model": {"name": "resnet18"}}).model.width == 0.25
    assert make({"data": {"name": "digits-mini"}, "model": {"name": "resnet18"}}).model.width == 0.25  # as always


def test_own_data_by_reference_are_used_whole() -> None:
    found = make({"data": {"name": "clinics:make"}})
    assert (found.federation.fraction, found.federation.validation) == (1.0, 0.2)
    assert (found.federation.users_per_domain, found.federation.at, found.data.image_size) == (10, 0.2, None)
    assert found.model.name == "resnet18"
