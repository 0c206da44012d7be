"""fedrbn evaluate: attacks by name, gates, comparison with another run, the check-list's exit code."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedrbn.cli import app
from fedrbn.cli.evaluating import attack_texts, meets, parse_condition
from fedrbn.storage import RunDirectory

RUN = CliRunner()


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A copy of the trained run that a test may write into."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


def evaluate(*arguments: str) -> tuple[int, str]:
    result = RUN.invoke(app, ["evaluate", *arguments, "--quiet", "--workers", "1"])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout


def test_attacks_are_read_with_their_settings() -> None:
    assert attack_texts("pgd-20,pgd:steps=50,eps=8/255,restarts=5,mia") == (
        "pgd-20",
        "pgd:steps=50,eps=8/255,restarts=5",
        "mia",
    )
    assert attack_texts("paper") == ("pgd-20", "pgd-100", "mia-20", "mia-100", "aa", "lsa-7")
    assert attack_texts("corruptions")[:4] == (
        "gaussian-noise:severity=1",
        "gaussian-noise:severity=3",
        "gaussian-noise:severity=5",
        "gaussian-blur:severity=1",
    )
    assert len(attack_texts("corruptions")) == 12
    assert attack_texts(None) == ()


def test_several_attacks_with_sa_beside_each_ra(run: Path) -> None:
    attacks = "pgd:steps=2,lsa:rounds=1,gaussian-noise:severity=5"
    code, output = evaluate(str(run), "--attacks", attacks, "--subset", "3", "--no-checks", "--json")
    assert code == 0
    record = json.loads(output)
    assert list(record["attacks"]) == ["pgd:steps=2", "lsa:rounds=1", "gaussian-noise:severity=5"]
    assert record["attack"] == "pgd:steps=2"
    # Ten clients with eight test images each; the expensive attack sees three of each.
    assert record["samples"]["ra"] == 80
    assert record["samples"]["ra[lsa:rounds=1]"] == record["samples"]["sa[lsa:rounds=1]"] == 30
    for column in ("sa", "ra", "ra adaptive", "ra[lsa:rounds=1] adaptive", "ra[gaussian-noise:severity=5]"):
        assert 0 <= record["mean"][column] <= 1
        low, high = record["interval"][column]
        assert low <= record["mean"][column] <= high
    assert record["mean"]["ra adaptive"] <= record["mean"]["ra"] <= record["mean"]["sa"]
    assert record["worst_domain"]["ra"] == min(domain["ra"] for domain in record["domains"].values())
    stored = RunDirectory.open(run).answers()
    assert stored["plain-0"]["ra[pgd:steps=2]"].double().mean().item() == record["users"]["plain-0"]["ra"]


def test_a_detector_is_attacked_through_its_choice(run: Path) -> None:
    code, output = evaluate(str(run), "--predict", "confident", "--no-checks", "--json")
    assert code == 0
    record = json.loads(output)
    assert record["deployment"] == "confident"
    assert {user["predicts"] for user in record["users"].values()} == {"confident"}
    assert {"sa", "ra", "ra adaptive", "sa@clean", "ra@noised"} <= record["mean"].keys()


def test_requirements_set_the_exit_code(run: Path) -> None:
    assert evaluate(str(run), "--no-checks", "--require", "sa>=0", "--require", "worst_domain_ra>=0")[0] == 0
    assert evaluate(str(run), "--no-checks", "--require", "ra>=0.99")[0] == 1
    with pytest.raises(ValueError, match=r"expected a column of this evaluation: .*sa"):
        evaluate(str(run), "--no-checks", "--require", "precision>=0.5")
    with pytest.raises(ValueError, match=r"such as 'ra>=0\.40'"):
        evaluate(str(run), "--require", "ra is good")


def test_conditions() -> None:
    record = {"mean": {"ra": 0.4, "ra adaptive": 0.3}, "worst_domain": {"ra": 0.1}}
    holds = {
        text: meets(record, parse_condition(text))
        for text in ("ra>=0.4", "ra>0.4", "ra adaptive<=0.3", "worst_domain_ra < 0.1", "worst_domain_ra>=0.1")
    }
    assert list(holds.values()) == [True, False, True, False, True]


def test_a_run_compared_with_itself_does_not_differ(run: Path, trained: Path) -> None:
    code, output = evaluate(str(run), "--no-checks", "--against", str(trained), "--json")
    assert code == 0
    compared = json.loads(output)["against"]
    assert {c["column"] for c in compared} >= {"sa", "ra[pgd-2]", "ra[pgd-2] adaptive"}
    assert all(c["p"] == 1 and c["only_ours"] == c["only_theirs"] == 0 for c in compared)


def test_the_check_list_is_shown_and_fails_loudly(run: Path) -> None:
    # The authors' box leaves the ball, which the check-list must say.
    config = run / "config.toml"
    config.write_text(config.read_text().replace('threat = "pixel"', 'threat = "authors-release"'))
    code, output = evaluate(str(run))
    assert code == 1
    assert "Can these numbers be trusted?" in output
    assert "FAILED" in output
    assert "threat model authors-release" in " ".join(output.split())


def test_different_attacks_are_not_compared(run: Path, trained: Path, tmp_path: Path) -> None:
    # Asked about another attack, this run has only the clean accuracies in common with the other.
    code, output = evaluate(str(run), "--attacks", "fgsm-rs", "--no-checks", "--against", str(trained), "--json")
    assert code == 0
    assert {c["column"] for c in json.loads(output)["against"]} == {"sa", "sa@clean", "sa@noised"}
    # The same name with another ε is refused.
    config = run / "config.toml"
    config.write_text(config.read_text().replace("eps = 0.03137254901960784", "eps = 0.01"))
    with pytest.raises(ValueError, match="'pgd-2' with other settings"):
        evaluate(str(run), "--no-checks", "--against", str(trained))
