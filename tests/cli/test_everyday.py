"""What people meet every day: options that contradict each other, names that are misspelt, files that are not there."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fedrbn import cli, config
from fedrbn.cli import app
from fedrbn.cli.evaluate import known_column, parse_condition
from fedrbn.cli.settings import rows
from fedrbn.config.text import nearest
from fedrbn.errors import EvaluationError, FedRBNError, FleetError, StorageError
from fedrbn.evaluation.protocol import EvaluationSettings
from fedrbn.fleet import description
from fedrbn.runs import train
from fedrbn.runs.directory import RunDirectory


def refused(*arguments: str) -> str:
    """What the command says, which ends with an error that whoever called it can mend."""
    result = CliRunner().invoke(app, list(arguments))
    assert isinstance(result.exception, FedRBNError), result.output
    return str(result.exception)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ("run", "--rounds", "5", "--set", "train.rounds=6"),
            "got train.rounds twice: 5 as an option and 6 with",
        ),
        (("compare", "--rounds", "5", "--set", "train.rounds=6,7"), "got train.rounds twice: 5 as an option and 6,7"),
        (("cost", "--data", "digits", "--set", "data.name=digits-mini"), "got data.name twice: digits as an option"),
    ],
)
def test_an_option_and_a_setting_that_contradict_each_other_are_refused(arguments: tuple[str, ...], said: str) -> None:
    assert said in refused(*arguments)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            ("attack.eps=8",),
            "attack.eps: got 8; expected at most 1, because pixels are in [0, 1] (did you mean 8/255",
        ),
        (("method.name=FedRBN",), "Did you mean 'fedrbn'?"),
        (("method.name=Fat_BN",), "Did you mean 'fatbn'?"),
        (("method.name=fedrbn_plus",), "Did you mean 'fedrbn+'?"),
        (("method.Lam=0.1",), "did you mean 'lam'?"),
        (("data.name=photos",), "There is no folder 'photos' either."),
        (("data.name=my/photos",), "got data 'my/photos', which is not a folder;"),
    ],
)
def test_mistakes_in_settings_are_answered_with_what_was_meant(settings: tuple[str, ...], said: str) -> None:
    assert said in refused("run", *(text for setting in settings for text in ("--set", setting)))


@pytest.mark.parametrize(
    ("name", "known", "meant"),
    [
        ("FedRBN", ["fedavg", "fatbn", "fedrbn"], "fedrbn"),
        ("fat avg", ["fatavg+dbn", "fatavg", "fedavg"], "fatavg"),
        ("resnet-18", ["resnet18", "alexnet"], "resnet18"),
        ("fedrnb", ["fedrob", "fedrbn"], "fedrbn"),
        ("xyz", ["fedavg"], None),
    ],
)
def test_the_spelling_comes_before_a_similar_name(name: str, known: list[str], meant: str | None) -> None:
    assert nearest(name, known) == meant


def test_a_folder_that_is_not_there_is_said_not_to_be(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="run, which does not exist; expected a run directory"):
        RunDirectory.open(tmp_path / "run")
    (tmp_path / "run").write_text("")
    with pytest.raises(StorageError, match="run, which is not a folder; expected a run directory"):
        RunDirectory.open(tmp_path / "run")


def test_settings_list_the_defaults_of_methods_and_rules() -> None:
    default = {f"{section}.{key}": shown for section, key, shown, _ in rows()}
    assert "–" not in default.values()
    assert default["method.lam"] == "0.5"
    assert default["method.mu"] == "0.001: fatprox; 0.0: others"
    assert default["method.predict"] == '"clean": fedrbn+; "noised": others'
    assert default["method.beta"] == "6.0"
    assert (default["train.slack"], default["train.malicious"], default["train.at_weight"]) == ("0.1667", "0.2", "1.0")
    assert default["data.domains"] == "not set"


def begun(path: Path, **sections: dict[str, Any]) -> Path:
    """A run that has its settings and nothing else."""
    RunDirectory.create(path, config.make(sections))
    return path


@pytest.mark.parametrize(
    ("text", "attacks", "column"),
    [
        ("ra>=0.4", (), "ra"),
        ("worst_domain_ra adaptive>=0.1", (), "worst_domain_ra adaptive"),
        ("ra@BN_a>=0.1", (), "ra@noised"),
        ("ra[pgd-20]>=0.1", ("mia", "pgd-20"), "ra[pgd-20:eps=8/255]"),
        ("ra[pgd-20:eps=8/255] adaptive>=.1", ("mia", "pgd-20"), "ra[pgd-20:eps=8/255] adaptive"),
        ("ra[mia]>=1.", ("mia", "pgd-20"), "ra"),
    ],
)
def test_a_requirement_is_known_before_anything_is_evaluated(
    text: str, attacks: tuple[str, ...], column: str, tmp_path: Path
) -> None:
    found = known_column(parse_condition(text), begun(tmp_path / "run"), EvaluationSettings(attacks))
    assert found[1] == column


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("precision>=0.5", r"expected a column of this evaluation: sa, sa@BN_c, ra, .*ra@BN_a"),
        ("ra[pgd-20]>=0.5", "expected a column of this evaluation"),
        ("ra>=40", r"expected a number between 0 and 1\. Did you mean 0\.4\?"),
        ("ra=>0.5", "expected a column, a comparison and a number"),
    ],
)
def test_a_wrong_requirement_is_refused_before_anything_is_evaluated(
    text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train, "evaluate", lambda *_, **__: pytest.fail("evaluated"))
    with pytest.raises(EvaluationError, match=said):
        raise (
            CliRunner().invoke(app, ["evaluate", str(begun(tmp_path / "run")), "--require", text]).exception or OSError
        )


def test_the_example_of_a_fleet_can_be_planned(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    assert "fedrbn plan --example writes one" in refused("plan", str(path))
    written = CliRunner().invoke(app, ["plan", "--example", str(path)])
    assert written.exit_code == 0, written.output
    fleet = description.read(path)
    assert [device.id for device in fleet.devices] == [
        "workstation",
        *(f"phone-{i}" for i in range(3)),
        "camera",
        "sensor",
    ]
    planned = CliRunner().invoke(app, ["plan", str(path), "--json"])
    assert planned.exit_code == 0, planned.output
    duties = {name: device["duty"] for name, device in json.loads(planned.stdout)["devices"].items()}
    phones = {f"phone-{number}": "AT on 70 %" for number in range(3)}
    assert duties == {"workstation": "AT", **phones, "camera": "PNC, λ = 1", "sensor": "plain ST"}
    with pytest.raises(FleetError, match="already exists"):
        description.write_example(path)


def test_cost_takes_data_and_method_like_run() -> None:
    """Everybody is an ST user of fedavg: 3 forward passes' worth for each image, in the paper's count."""
    options = ["--set", "model.width=0.0625", "--json"]
    plain, robust = (
        CliRunner().invoke(app, ["cost", "--data", "digits-mini", "--method", name, *options])
        for name in ("fedavg", "fatavg")
    )
    images = [json.loads(result.stdout)["macs_per_image"] for result in (plain, robust)]
    assert [list(each) for each in images] == [["ST"], ["AT", "ST"]]
    assert images[0]["ST"]["paper"] == images[1]["ST"]["paper"]
    assert images[1]["AT"]["paper"] == 8 * images[1]["ST"]["paper"], "(7 + 1) · 3 passes of AT to 3 of ST"
    assert "got nothing to count" in refused("cost")


@pytest.mark.parametrize(
    ("there", "says"), [(True, "continue with fedrbn run --resume "), (False, "no run has started")]
)
def test_an_interruption_names_the_folder(
    there: bool, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    path = tmp_path / "my run"
    if there:
        begun(path)
    monkeypatch.setattr(train, "resume", interrupted)
    monkeypatch.setattr("sys.argv", ["fedrbn", "run", "--resume", str(path)])
    monkeypatch.setattr("sys.path", list(sys.path))
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 130
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert said == f"interrupted; {says}" + (f"'{path}'" if there else "")
