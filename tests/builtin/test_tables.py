"""Every line of the tables leads to code that can be used as the table's docstring says."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from fedrbn.builtin import BuiltIn, alternatives
from fedrbn.builtin.aggregation import RULES
from fedrbn.builtin.attacks import FAMILIES, ON_LOGITS, ON_LOSS, PAPER
from fedrbn.builtin.data_sets import AVAILABLE
from fedrbn.builtin.methods import METHODS
from fedrbn.builtin.networks import NETWORKS
from fedrbn.cli import app
from fedrbn.config import reference

TABLES = {"method": METHODS, "attack": FAMILIES, "rule": RULES, "network": NETWORKS, "data set": AVAILABLE}


@pytest.mark.parametrize(
    ("name", "entry"),
    [(f"{kind} {name}", entry) for kind, table in TABLES.items() for name, entry in table.items()],
)
def test_every_line_leads_to_documented_code(name: str, entry: BuiltIn) -> None:
    found = entry.load()
    assert callable(found), name
    assert inspect.getdoc(found), f"{name}: {entry.reference} has no docstring"
    assert 5 < len(entry.summary) < 90
    assert not entry.summary.endswith(".")


def test_an_entry_is_called_like_the_function_it_stands_for() -> None:
    entry = BuiltIn("fractions:Fraction", "a fraction")
    assert entry(3, denominator=4) == entry.load()(3, 4)
    assert str(entry(3, 4)) == "3/4"


def test_names_are_listed_before_what_else_is_accepted() -> None:
    assert alternatives(["a", "b"]) == "a, b, or package.module:object"
    assert alternatives({"a": 1}, "a folder") == "a, a folder, or package.module:object"


def test_an_attack_has_one_name() -> None:
    assert not ON_LOSS.keys() & ON_LOGITS.keys()
    assert not PAPER.keys() & FAMILIES.keys()


def help_of(*command: str) -> str:
    """The words of a command's help; lines are broken at spaces and hyphens."""
    shown = CliRunner().invoke(app, [*command, "--help"], env={"COLUMNS": "1000", "TERMINAL_WIDTH": "1000"})
    return " ".join(shown.output.replace("-\n", "-").split()).replace("- ", "-")


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (("run",), alternatives(METHODS)),
        (("run",), alternatives(AVAILABLE, "a folder")),
        (("compare",), alternatives(METHODS)),
        (("evaluate",), alternatives([*PAPER, *FAMILIES])),
    ],
)
def test_help_lists_every_name(command: tuple[str, ...], expected: str) -> None:
    assert expected in help_of(*command)


@pytest.mark.parametrize(
    ("setting", "table"),
    [
        ("method.name", METHODS),
        ("data.name", AVAILABLE),
        ("model.name", NETWORKS),
        ("attack.name", ON_LOSS),
        ("train.aggregation", RULES),
    ],
)
def test_settings_list_every_name(setting: str, table: dict[str, BuiltIn]) -> None:
    meanings = {f"{section}.{key}": meaning for section, key, _, meaning in reference()}
    assert ", ".join(table) in meanings[setting]


def test_the_tables_are_light() -> None:
    """Names are listed by `--help`, which must not wait for PyTorch, NumPy or pydantic."""
    modules = ", ".join(
        f"fedrbn.builtin.{name}" for name in ("aggregation", "attacks", "data_sets", "methods", "networks")
    )
    code = f"import sys, {modules}; sys.exit(bool({{'torch', 'numpy', 'pydantic'}} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
