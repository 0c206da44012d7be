"""The command line as a user sees it: stdout, stderr and the exit code."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from rich.console import Console

import fedrbn as package
from fedrbn import cli
from fedrbn.config import Experiment
from fedrbn.runs import sweep
from fedrbn.runs import train as runs
from fedrbn.runs.directory import RunDirectory
from fedrbn.runs.display import Display


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str


Command = Callable[..., Outcome]


@pytest.fixture
def fedrbn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs `fedrbn …` in an empty directory of its own."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["fedrbn", *arguments])
        monkeypatch.setattr(sys, "path", list(sys.path))
        capsys.readouterr()
        try:
            cli.main()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0
        printed = capsys.readouterr()
        return Outcome(code, printed.out, printed.err)

    return run


def assert_refused(outcome: Outcome, *texts: str) -> None:
    """Exit code 2 and one message that says what to do; nothing on stdout, no traceback."""
    assert outcome.code == 2
    assert outcome.out == ""
    assert "Traceback" not in outcome.err
    assert len(outcome.err.strip().splitlines()) == 1, outcome.err
    assert outcome.err.startswith("error: ")
    for text in texts:
        assert text in outcome.err


def test_help_lists_the_commands(fedrbn: Command) -> None:
    shown = fedrbn("--help")
    assert shown.code == 0
    for command in ("run", "evaluate", "compare", "data"):
        assert f"\n  {command} " in shown.out


def test_the_version(fedrbn: Command) -> None:
    shown = fedrbn("--version")
    assert (shown.code, shown.out) == (0, f"fedrbn {package.__version__}\n")


def test_help_shows_defaults_without_markup(fedrbn: Command) -> None:
    shown = fedrbn("deploy", "init", "--help").out
    assert "[default: 9092]" in shown
    assert "[required]" in shown
    assert "\\" not in shown


def test_help_does_not_import_torch() -> None:
    code = (
        "import sys\n"
        "from fedrbn.cli import main\n"
        "sys.argv = ['fedrbn', '--help']\n"
        "try:\n    main()\n"
        "except SystemExit:\n    pass\n"
        "heavy = {'torch', 'numpy', 'sklearn', 'matplotlib', 'PIL'} & sys.modules.keys()\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Usage" in done.stdout


def test_run_prints_a_table_and_says_where_the_run_is(fedrbn: Command, tiny_options: list[str], tmp_path: Path) -> None:
    done = fedrbn("run", *tiny_options, "--rounds", "1", "--method", "fatbn", "--out", "mine")
    assert done.code == 0, done.err
    assert "fatbn on digits-mini" in done.out
    assert "mean over users" in done.out
    assert "Adaptive" not in done.out  # its networks have one branch, so there is no such column to explain
    assert "network digits, width 0.0625: 56,630 parameters, input 3 x 28 x 28, 10 classes" in done.err
    assert "10 clients (5 AT, 5 ST)" in done.err
    assert "round 1/1" in done.err
    assert "run directory: mine" in done.err
    experiment = RunDirectory.open(tmp_path / "mine").experiment()
    assert (experiment.method.name, experiment.train.rounds) == ("fatbn", 1)


def test_a_terminal_shows_bars_with_client_loss_and_time_left(tiny: Callable[..., Experiment], tmp_path: Path) -> None:
    page = io.StringIO()
    experiment = tiny(train={"rounds": 1}, federation={"participants": 2})
    with Display(Console(file=page, force_terminal=True, width=140), "title") as display:
        runs.run(experiment, tmp_path / "run", watcher=display)
    for text in ("title round", "clients", "loss", "RA of AT users", "left", "title evaluating"):
        assert text in page.getvalue()


def test_json_is_all_there_is_on_stdout(fedrbn: Command, tiny_options: list[str]) -> None:
    done = fedrbn("run", *tiny_options, "--rounds", "1", "--seed", "3", "--json", "--quiet")
    assert done.code == 0, done.err
    assert done.err == ""
    record = json.loads(done.out)
    assert (record["method"], record["seed"]) == ("fedrbn", 3)
    assert set(record["domains"]) == {"plain", "pen", "texture", "synthetic", "street"}
    (default,) = Path("runs").iterdir()
    assert default.name.startswith("fedrbn-")


def test_a_config_file_with_options_on_top(fedrbn: Command, tiny_options: list[str]) -> None:
    Path("mine.toml").write_text('[method]\nname = "fatavg"\n[train]\nrounds = 7\n')
    done = fedrbn("run", "mine.toml", *tiny_options, "--rounds", "1", "--json", "-q")
    assert json.loads(done.out)["method"] == "fatavg"


def test_a_run_in_the_directory_of_another_is_refused(fedrbn: Command, tiny_options: list[str], trained: Path) -> None:
    before = (trained / "config.toml").read_bytes()
    assert_refused(fedrbn("run", *tiny_options, "--out", str(trained)), "already holds a run", "--resume", "--force")
    assert (trained / "config.toml").read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "texts"),
    [
        (["run", "--set", "train.ronds=3"], ["'ronds'", "did you mean 'rounds'"]),
        (["run", "--set", "trian.rounds=3"], ["did you mean 'train'"]),
        (["run", "--set", "rounds=3"], ["expected section.key=value"]),
        (["run", "--set", "method.lam=0,1"], ["several values for method.lam", "fedrbn compare"]),
        (["run", "--rounds", "0"], ["train.rounds: got 0"]),
        (["run", "--method", "fatprx"], ["Did you mean 'fatprox'"]),
        (["run", "--method", "fatavg", "--set", "method.lam=0.5"], ["method.lam", "has no such option"]),
        (["run", "--data", "digit-mini"], ["Did you mean 'digits-mini'"]),
        (["run", "--method", "missing_module_xyz:method"], ["cannot be imported"]),
        (["run", "missing.toml"], ["missing.toml", "cannot be read"]),
        (["run", "--resume", "nowhere"], ["got nowhere, which does not exist", "expected a run directory"]),
        (["run", "--resume", "nowhere", "--seed", "3"], ["--resume DIR"]),
        (["evaluate", "nowhere"], ["got nowhere, which does not exist", "expected a run directory"]),
        (["compare", "--seeds", "1,two"], ["whole numbers"]),
        (["compare", "--set", "method.lamm=0.5"], ["did you mean 'lam'"]),
        (["compare", "--set", "run.seed=1,2"], ["--seeds"]),
        (["data", "preview", "digit-mini"], ["Did you mean 'digits-mini'"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_mistakes_are_one_message_and_exit_code_2(fedrbn: Command, arguments: list[str], texts: list[str]) -> None:
    assert_refused(fedrbn(*arguments), *texts)
    assert not Path("runs").exists()


def test_unknown_options_are_typers_to_refuse(fedrbn: Command) -> None:
    outcome = fedrbn("run", "--ronds", "3")
    assert outcome.code == 2
    assert "No such option" in outcome.err


def test_an_output_place_that_cannot_be_made_is_a_message_too(fedrbn: Command, tiny_options: list[str]) -> None:
    Path("file").write_text("x")
    assert_refused(fedrbn("run", *tiny_options, "--rounds", "1", "--out", "file/run", "-q"), "cannot be written")


def test_an_error_in_own_code_is_a_message_with_its_line(fedrbn: Command, tiny_options: list[str]) -> None:
    Path("own_broken_method.py").write_text("def method(attack):\n    raise ValueError('my own bug')\n")
    done = fedrbn("run", *tiny_options, "--method", "own_broken_method:method")
    assert_refused(
        done, "'own_broken_method:method' failed: ValueError: my own bug (own_broken_method.py, line 2). Expected"
    )


def test_a_bug_keeps_its_traceback(fedrbn: Command, tiny_options: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ValueError("our bug")

    monkeypatch.setattr(runs, "run", broken)
    with pytest.raises(ValueError, match="our bug"):
        fedrbn("run", *tiny_options)


def test_own_code_is_found_in_the_current_directory(fedrbn: Command, tiny_options: list[str]) -> None:
    Path("own_method_for_cli.py").write_text(
        "from dataclasses import replace\n"
        "from fedrbn.federated.methods import fatbn\n"
        "def method(attack):\n    return replace(fatbn(attack), name='ours')\n"
    )
    done = fedrbn("run", *tiny_options, "--rounds", "1", "--method", "own_method_for_cli:method", "--json", "-q")
    assert json.loads(done.out)["method"] == "ours"
    (path,) = Path("runs").iterdir()
    assert path.name.startswith("own_method_for_cli.method-")


def test_ctrl_c_says_how_to_go_on(fedrbn: Command, tiny_options: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    def begun(_: Experiment, directory: Path, **__: object) -> None:
        directory.mkdir()
        (directory / "config.toml").touch()
        raise KeyboardInterrupt

    monkeypatch.setattr(runs, "run", interrupted)
    done = fedrbn("run", *tiny_options)
    assert done.code == 130
    assert done.err == "interrupted; no run has started\n"
    monkeypatch.setattr(runs, "run", begun)
    done = fedrbn("run", *tiny_options, "--out", "my run")
    assert done.code == 130
    assert done.err == "interrupted; continue with fedrbn run --resume 'my run'\n"
    monkeypatch.setattr(sweep, "complete", interrupted)
    done = fedrbn("compare", *tiny_options)
    assert done.code == 130
    assert "repeat the command" in done.err
    assert "--resume" not in done.err


def test_resuming_a_finished_run_shows_its_table(fedrbn: Command, trained: Path) -> None:
    done = fedrbn("run", "--resume", str(trained))
    assert done.code == 0
    assert "fedrbn on digits-mini" in done.out


@pytest.fixture
def copy(trained: Path, tmp_path: Path) -> Path:
    """A copy of the trained run, to write into."""
    path = tmp_path / "copy"
    shutil.copytree(trained, path)
    return path


def test_evaluate_prints_both_branches_of_a_dual_network(fedrbn: Command, copy: Path) -> None:
    done = fedrbn("evaluate", str(copy), "--no-checks")
    assert done.code == 0, done.err
    for text in ("SA BN_c", "RA BN_c", "SA BN_a (predicts)", "RA BN_a (predicts)", "RA adaptive"):
        assert text in done.out
    assert "evaluating 10 clients" in done.err
    assert len(RunDirectory.open(copy).records("evaluations.jsonl")) == 2


def test_evaluate_with_other_attacks_and_requirements(fedrbn: Command, copy: Path) -> None:
    options = [
        "--no-checks",
        "--attacks",
        "pgd:steps=1,eps=2/255,gaussian-noise:severity=1",
        "--samples",
        "3",
        "--json",
    ]
    done = fedrbn("evaluate", str(copy), *options, "-q", "--require", "sa>=0", "--require", "worst_domain_ra>=0")
    assert done.code == 0, done.err
    record = json.loads(done.out)
    assert list(record["attacks"]) == ["pgd:steps=1,eps=2/255", "gaussian-noise:severity=1"]
    assert record["mean"]["ra"] <= 1
    unmet = fedrbn("evaluate", str(copy), "--no-checks", "-q", "--require", "ra>1")
    assert unmet.code == 1
    assert "requirement not met: ra>1" in unmet.err
    assert_refused(fedrbn("evaluate", str(copy), "--require", "ra"), "got requirement 'ra'")


def test_evaluate_a_rule_that_picks_the_branch_under_several_attacks(fedrbn: Command, copy: Path) -> None:
    attacks = ["--attacks", "pgd:steps=1,mia:steps=1,eps=4/255", "--predict", "confident", "--samples", "2"]
    done = fedrbn("evaluate", str(copy), "--no-checks", *attacks)
    assert done.code == 0, done.err
    for text in ("SA confident", "RA confident", "under several attacks", "mia:steps=1,eps=4/255", "4/255"):
        assert text in done.out


def test_evaluate_against_itself_finds_no_difference(fedrbn: Command, copy: Path, trained: Path) -> None:
    done = fedrbn("evaluate", str(copy), "--no-checks", "--against", str(trained), "--json", "-q")
    assert done.code == 0, done.err
    compared = json.loads(done.out)["against"]
    assert compared
    assert all(row["only_ours"] == row["only_theirs"] == 0 for row in compared)


def test_compare_prints_every_method_and_does_not_repeat_runs(fedrbn: Command, tiny_options: list[str]) -> None:
    options = ["compare", *tiny_options, "--rounds", "1", "--methods", "fedrbn,fatbn", "--out", "store"]
    done = fedrbn(*options)
    assert done.code == 0, done.err
    assert "2 run(s)" in done.err
    for text in ("fedrbn", "fatbn", "BN_a", "its only BN"):
        assert text in done.out
    again = fedrbn(*options, "--json", "-q")
    groups = json.loads(again.out)
    assert {name: len(records) for name, records in groups.items()} == {"fedrbn": 1, "fatbn": 1}
    assert again.err == ""
    assert len(list(Path("store").iterdir())) == 2
    for path in Path("store").iterdir():
        assert len(RunDirectory.open(path).records("evaluations.jsonl")) == 1


def test_compare_over_seeds_shows_the_spread(fedrbn: Command, tiny_options: list[str]) -> None:
    done = fedrbn(
        "compare", *tiny_options, "--rounds", "1", "--methods", "fatavg", "--seeds", "1,2", "--out", "s", "-q"
    )
    assert done.code == 0, done.err
    assert "±" in done.out


def test_data_list_and_preview(fedrbn: Command) -> None:
    shown = fedrbn("data", "list")
    assert shown.code == 0
    assert "digits-mini" in shown.out
    done = fedrbn("data", "preview", "digits-mini", "--out", "sheet.png")
    assert done.code == 0, done.err
    assert Path("sheet.png").read_bytes().startswith(b"\x89PNG")
