"""fedrbn new, and docs/extending.md, which shows what it writes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

import fedrbn
from fedrbn import nets
from fedrbn.attacks import PGD, Untargeted, attack_named, from_config
from fedrbn.cli import app
from fedrbn.cli.new import Kind, skeleton
from fedrbn.config import AttackConfig, ConfigError, make, plugins
from fedrbn.data import load
from fedrbn.errors import FedRBNError
from fedrbn.federated.aggregation.mean import Contribution
from fedrbn.federated.aggregation.rules import aggregation
from fedrbn.federated.options import named

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/extending.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
EXAMPLES: dict[Kind, str] = {
    "method": "nearby",
    "attack": "sign_step",
    "aggregation": "role_mean",
    "network": "small_cnn",
    "data": "lamps",
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that modules can be imported from."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_every_kind_has_a_signature_and_an_example_on_the_page() -> None:
    assert list(get_args(Kind)) == list(EXAMPLES) == list(plugins.SIGNATURES)


@pytest.mark.parametrize(("kind", "name"), EXAMPLES.items())
def test_the_page_shows_what_new_writes(kind: Kind, name: str) -> None:
    assert f"# {name}.py\n{skeleton(kind, name)[f'{name}.py']}" in BLOCKS


def test_the_examples_of_the_page_are_found_by_their_names(here: Path) -> None:
    for block in BLOCKS:
        if title := re.match(r"# (\w+\.py)\n", block):
            (here / title[1]).write_text(block, encoding="utf-8")
    assert named("nearby:nearby", PGD()).name == "nearby"
    config = AttackConfig(name="sign_step:sign_step", eps=0.1)
    attack = from_config(config)
    assert attack_named("sign_step:sign_step", config) == Untargeted(attack), "the same attack trains and evaluates"
    experiment = make({"train": {"aggregation": "role_mean:role_mean"}})
    assert aggregation(experiment, named("fatavg", PGD()), 4).__name__ == "role_mean"
    assert nets.build("small_cnn:small_cnn", 4, 1.0, (3, 16, 16), seed=1).classify.out_features == 4
    assert load("lamps:lamps", 16).image_shape == (3, 16, 16)


def test_the_callback_of_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scope: dict[str, Any] = {}
    exec(BLOCKS[-1], scope)  # noqa: S102  (the page's own code)
    record = scope["train"](tmp_path / "run")
    assert record["round"] == 1
    assert re.fullmatch(r"1 \d+\.\d+ \d\.\d+ \d+\.\d+\n", capsys.readouterr().out)


@pytest.mark.parametrize("kind", get_args(Kind))
def test_new_writes_both_files_once(kind: Kind, here: Path) -> None:
    done = CliRunner().invoke(app, ["new", kind, "mine"])
    assert done.exit_code == 0, done.output
    assert {path.name for path in here.iterdir()} == {"mine.py", "test_mine.py"}
    for path in here.iterdir():
        compile(path.read_text(encoding="utf-8"), path.name, "exec")
        assert "NAME" not in path.read_text(encoding="utf-8")
    again = CliRunner().invoke(app, ["new", kind, "mine"])
    assert isinstance(again.exception, ConfigError)
    assert "mine.py, which already exists" in str(again.exception)


@pytest.mark.parametrize("installed", [True, False])
def test_new_says_how_to_run_its_test(installed: bool, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not installed:
        monkeypatch.setitem(sys.modules, "pytest", None)
    done = CliRunner().invoke(app, ["new", "network", "mine"])
    first = "" if installed else "pip install pytest, then "
    assert f"test it: {first}pytest test_mine.py\n" in done.output


def test_a_name_that_is_none_is_refused_with_one_that_is(here: Path) -> None:
    refused = CliRunner().invoke(app, ["new", "attack", "my-attack"])
    assert str(refused.exception).endswith("Did you mean my_attack?")
    assert not list(here.iterdir())


@pytest.mark.slow
def test_the_tests_that_new_writes_pass(tmp_path: Path) -> None:
    """In a process of its own, in a folder with nothing else; warnings are errors."""
    for kind, name in EXAMPLES.items():
        for file, text in skeleton(kind, name).items():
            (tmp_path / file).write_text(text, encoding="utf-8")
    source = str(Path(fedrbn.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "pytest", "-q", "-p", "no:cacheprovider", "."],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": source},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "9 passed" in done.stdout


def test_a_plain_pytest_accepts_the_settings_of_this_folder(here: Path) -> None:
    """README's reader runs `fedrbn new` in the project's folder and installs pytest alone, without our plugins."""
    (here / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
    (here / "test_mine.py").write_text("def test_nothing(): pass\n", encoding="utf-8")
    plain = [option for name in ("timeout", "xdist", "cov", "hypothesispytest") for option in ("-p", f"no:{name}")]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *plain, "-p", "no:cacheprovider", "-q", "test_mine.py"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "1 passed" in done.stdout, done.stdout + done.stderr


def failing(*_: object) -> None:
    """Fails."""
    raise KeyError("no such layer")


@pytest.mark.parametrize(
    ("kind", "use"),
    [
        ("method", lambda name: named(name, PGD())),
        ("attack", lambda name: from_config(AttackConfig(name=name))),
        (
            "aggregation",
            lambda name: aggregation(make({"train": {"aggregation": name}}), named("fatavg", PGD()), 4)({}, []),
        ),
        ("data", load),
    ],
)
def test_an_error_in_own_code_is_told_with_its_line(kind: str, use: Any) -> None:
    line = failing.__code__.co_firstlineno + 2
    with pytest.raises(FedRBNError, match=rf"your {kind} .*: KeyError: .*no such layer.* \(test_new.py, line {line}\)"):
        use(f"{__name__}:failing")


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        (lambda *_: None, "got NoneType from aggregation"),
        (lambda *_: {}, r"such as 'w' \(1 in all\); expected a dictionary with the names and shapes"),
        (lambda *_: {"w": torch.zeros(3)}, "such as 'w'"),
        (lambda shared, _: {**shared, "v": torch.zeros(3)}, "such as 'v'"),
    ],
    ids=["nothing", "empty", "shape", "more"],
)
def test_a_rule_must_return_tensors_like_the_shared_ones(
    rule: Any, said: str, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "failing", rule)
    made = aggregation(make({"train": {"aggregation": f"{__name__}:failing"}}), named("fatavg", PGD()), 4)
    with pytest.raises(FedRBNError, match=said):
        made({"w": torch.zeros(2)}, [])


def test_an_error_while_uploads_are_collected_is_not_the_rules() -> None:
    def uploads() -> Iterator[Contribution]:
        yield from ()
        raise OSError("disk full")

    made = aggregation(make({"train": {"aggregation": f"{__name__}:counting"}}), named("fatavg", PGD()), 4)
    with pytest.raises(OSError, match="disk full"):
        made({}, uploads())


def counting(shared: dict[str, Tensor], contributions: Iterable[Contribution]) -> dict[str, Tensor]:
    """Reads all contributions."""
    list(contributions)
    return shared


def no_arguments() -> None:
    """Fits nothing."""


@pytest.mark.parametrize(
    ("kind", "use"),
    [
        ("method", lambda name: named(name, PGD())),
        ("attack", lambda name: from_config(AttackConfig(name=name))),
        ("attack", attack_named),
        ("aggregation", lambda name: aggregation(make({"train": {"aggregation": name}}), named("fatavg", PGD()), 4)),
        ("data", load),
    ],
)
def test_a_wrong_signature_is_explained_with_the_right_one(kind: str, use: Any) -> None:
    with pytest.raises(FedRBNError) as refused:
        use(f"{__name__}:no_arguments")
    said = str(refused.value)
    assert "has the signature () -> None" in said.replace("'None'", "None")
    assert plugins.SIGNATURES[kind] in said
    assert f"fedrbn new {kind} NAME" in said
