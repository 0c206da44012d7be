"""fedrbn evaluate: attacks by name, gates, comparison with another run, the check-list's exit code."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import Generator, Tensor
from typer.testing import CliRunner

import fedrbn
from fedrbn.attacks import Logits
from fedrbn.cli import app
from fedrbn.cli.evaluate import attack_texts, failures, meets, objections, parse_condition, warnings
from fedrbn.config import Experiment
from fedrbn.errors import FedRBNError
from fedrbn.evaluation import checklist
from fedrbn.evaluation.protocol import EvaluationSettings, ensure_attacks
from fedrbn.evaluation.records import EvaluationRecord
from fedrbn.runs import train
from fedrbn.runs.directory import RunDirectory

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
    assert attack_texts("paper") == (
        *("pgd-20:eps=16/255", "pgd-100:eps=8/255", "mia-20:eps=16/255", "mia-100:eps=8/255", "aa:eps=8/255", "lsa-7"),
    )
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
    assert list(record["attacks"]) == ["pgd:steps=2,eps=8/255", "lsa:rounds=1", "gaussian-noise:severity=5"]
    assert record["attack"] == "pgd:steps=2,eps=8/255"
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
    assert stored["plain-0"]["ra[pgd:steps=2,eps=8/255]"].double().mean().item() == record["users"]["plain-0"]["ra"]


@pytest.mark.parametrize(
    ("attack", "said"),
    [
        ("aa", r"got no package pyautoattack; .*pip install 'fedrbn\[attacks\]'"),
        ("pgdd-20", r"got attack 'pgdd-20'; .*Did you mean 'pgd-20'\?"),
        ("pgd-20:eps=8", r"did you mean 8/255\?"),
    ],
)
def test_an_attack_that_cannot_run_is_refused_before_anything_is_evaluated(
    run: Path, attack: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyautoattack", None)
    monkeypatch.setattr(train, "evaluate_and_record", lambda *_: pytest.fail("evaluated"))
    with pytest.raises(FedRBNError, match=said):
        evaluate(str(run), "--attacks", attack)


def test_too_few_classes_for_autoattack_are_refused_before_anything_is_evaluated() -> None:
    pytest.importorskip("pyautoattack", reason="needs pip install 'fedrbn[attacks]'")
    experiment = fedrbn.make({})
    ensure_attacks(experiment, EvaluationSettings(("aa", "apgd")), 4)
    ensure_attacks(experiment, EvaluationSettings(("apgd", "square", "pgd-20")), 2)
    with pytest.raises(FedRBNError, match=r"got a network of 3 classes; expected at least 4.*Use apgd"):
        ensure_attacks(experiment, EvaluationSettings(("pgd-20", "aa")), 3)


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
    record = record_of(mean={"ra": 0.4, "ra adaptive": 0.3}, worst_domain={"ra": 0.1})
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


def test_the_check_list_is_shown_and_fails_loudly(
    tiny: Callable[..., Experiment], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The authors' box leaves the ball, which the check-list must say."""
    monkeypatch.setattr(checklist, "QUERIES", 10)  # the search is not what this is about
    fedrbn.run(tiny(attack={"threat": "authors-release"}, train={"rounds": 1}), tmp_path / "release")
    code, output = evaluate(str(tmp_path / "release"))
    assert code == 1
    assert "Can these numbers be trusted?" in output
    assert "FAILED" in output
    assert "threat model authors-release" in " ".join(output.split())


def test_different_attacks_are_not_compared(
    run: Path, trained: Path, tiny: Callable[..., Experiment], tmp_path: Path
) -> None:
    # Asked about another attack, this run has only the clean accuracies in common with the other.
    code, output = evaluate(str(run), "--attacks", "fgsm-rs", "--no-checks", "--against", str(trained), "--json")
    assert code == 0
    assert {c["column"] for c in json.loads(output)["against"]} == {"sa", "sa@clean", "sa@noised"}
    # The same name with another ε is refused.
    fedrbn.run(tiny(attack={"eps": 0.01}, train={"rounds": 1}), tmp_path / "other")
    with pytest.raises(ValueError, match="'pgd-2' with other settings"):
        evaluate(str(tmp_path / "other"), "--no-checks", "--against", str(trained))


def unchanged(logits: Logits, x: Tensor, y: Tensor, generator: Generator) -> Tensor:
    """An attack of one's own that changes nothing."""
    return x


def line(passed: bool | None, column: str = "", detail: str = "measured so") -> dict[str, Any]:
    return {"name": "a line", "passed": passed, "detail": detail, "allowed": "", "why": "weak", "column": column}


def record_of(mean: dict[str, float], worst_domain: dict[str, float], **more: Any) -> EvaluationRecord:
    """An evaluation with these numbers."""
    names = dict.fromkeys(("method", "data", "attack", "threat", "deployment", "part", "samples_digest"), "x")
    empty: dict[str, Any] = {key: {} for key in ("labels", "users", "domains")}
    counts = {"interval": dict.fromkeys(mean, (0.0, 1.0)), "samples": dict.fromkeys(mean, 10)}
    attacks = {"x": {"eps": None, "settings": ""}}
    line = {**names, **empty, **counts, "attacks": attacks, "seed": 1, "round": 1}
    return EvaluationRecord.from_json({**line, "mean": mean, "worst_domain": worst_domain, **more})


def record_with(*checks: dict[str, Any]) -> EvaluationRecord:
    mean = dict.fromkeys(("sa", "ra", "ra adaptive", "ra[aa]", "ra@clean", "ra@noised"), 0.5)
    user = {"domain": "pen", "role": "AT", "predicts": "noised"}
    return record_of(mean, mean, users={"a": user, "b": user}, checks=[line(True), line(True, "ra"), *checks])


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("sa>=0.5", set()),
        ("ra>=0.5", {"", "ra"}),
        ("ra adaptive>=0.5", {"", "ra"}),
        ("worst_domain_ra>=0.5", {"", "ra"}),
        ("ra@noised>=0.5", {"", "ra"}),
        ("ra@clean>=0.5", {"", "ra@clean"}),
        ("ra[aa]>=0.5", {"", "ra[aa]"}),
    ],
)
def test_a_required_number_must_have_been_checked(text: str, columns: set[str]) -> None:
    condition = parse_condition(text)
    for column in ("", "ra", "ra@clean", "ra[aa]"):
        judged = line(True, "ra@clean"), line(True, "ra[aa]")
        found = objections(record_with(*judged, line(None, column, "too few images")), condition)
        assert bool(found) == (column in columns)
        assert all("not measured" in why and "too few images" in why for why in found)


def test_a_number_that_nothing_judges_is_not_enough() -> None:
    assert objections(record_with(), parse_condition("ra[aa]>=0.5")) == [
        "requirement not met: ra[aa]>=0.5, because no check covers ra[aa]"
    ]
    assert objections(record_with(line(True, "ra[aa]")), parse_condition("ra[aa]>=0.5")) == []


def test_what_failed_and_what_was_not_measured_is_said() -> None:
    record = record_with(line(False, "ra[aa]"), line(None, "ra@clean"))
    assert [text.split(".")[0] for text in failures(record)] == ["check failed: ra[aa]: a line (measured so)"]
    assert warnings(record) == ["NOT MEASURED: ra@clean: a line (measured so)"]


def test_without_checks_the_number_decides_and_is_called_unchecked(run: Path) -> None:
    result = RUN.invoke(app, ["evaluate", str(run), "--no-checks", "--require", "ra>=0", "-q", "--workers", "1"])
    assert result.exit_code == 0
    assert "UNCHECKED" in result.stderr


def test_a_corruption_does_not_satisfy_a_required_robust_accuracy(run: Path) -> None:
    result = RUN.invoke(
        app, ["evaluate", str(run), "--attacks", "gaussian-blur", "--require", "ra>=0", "-q", "--workers", "1"]
    )
    assert result.exit_code == 1
    assert "requirement not met: ra>=0, because this check was not measured" in result.stderr
    assert "a corruption is not an adversary" in result.stderr
    assert "NOT MEASURED" in result.stdout


@pytest.fixture(scope="module")
def robust(tmp_path_factory: pytest.TempPathFactory, tiny: Callable[..., Experiment]) -> Path:
    """A run that is robust enough for a weak attack to flatter it: five users, all AT."""
    path = tmp_path_factory.mktemp("runs") / "robust"
    federation = {"users_per_domain": 1, "at": 1.0, "fraction": 0.5, "test_samples": 60}
    train = {"rounds": 8, "validate_every": 8, "lr": 0.1}
    fedrbn.run(tiny(federation=federation, train=train, method={"name": "fatbn"}, attack={"step_size": 6 / 255}), path)
    return path


@pytest.mark.slow
def test_weak_attacks_do_not_end_green(robust: Path) -> None:
    weak = ("pgd:steps=1,eps=8/255,step=0.0001", "pgd:eps=0", "cli.test_evaluate:unchanged")
    code, output = evaluate(str(robust), "--attacks", ",".join(("pgd-7", *weak)), "--require", "ra>=0", "--json")
    record = json.loads(output)
    assert code == 1
    verdicts = {(check["column"], check["name"]): check["passed"] for check in record["checks"]}
    reference = "a reference attack is not much stronger"
    assert verdicts["ra", reference], "pgd-7 is honest"
    assert [verdicts[f"ra[{attack}]", reference] for attack in weak] == [False, False, False]
    honest = [check for check in record["checks"] if check["column"] in ("", "ra")]
    assert failures(EvaluationRecord.from_json({**record, "checks": honest})) == []


@pytest.mark.slow
def test_an_honest_evaluation_ends_green(robust: Path) -> None:
    assert evaluate(str(robust), "--require", "ra>=0.05")[0] == 0
    # Five users with ten images each are too few to tell a weak attack from a robust network.
    assert evaluate(str(robust), "--samples", "10", "--require", "ra>=0")[0] == 1
