"""Names that come from outside are printed as they are, and too long ones are an error for users."""

from __future__ import annotations

import ast
import io
from pathlib import Path

import pytest
from rich.table import Table

from fedrbn.cli import output
from fedrbn.runs.console import SafeConsole
from fedrbn.runs.printable import printable
from fuzz.cases import REFUSED, command

CLI = Path(output.__file__).parent
HOSTILE = [
    "p[/x]",
    "[red]x[/red]",
    "[link=file:///etc]x",
    "a:smile:b",
    "[[]",
    "\x1b[2Jx",
    "\x9b31mx",
    "a\rb",
    "\u202eabc",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_tables_show_names_as_they_are(name: str) -> None:
    written = io.StringIO()
    table = Table(name, title=name, caption=name)
    table.add_row(name)
    page = SafeConsole(width=100, file=written, force_terminal=False)
    page.print(table)
    page.print(name)
    assert written.getvalue().count(printable(name)) == 5
    assert not any(character in written.getvalue() for character in "\x1b\x9b\r\u202e")


def test_what_a_terminal_obeys_is_written_out() -> None:
    assert printable("a\x1b[31m\x07\x9b\x7f\u202e\udcff\r") == r"a\x1b[31m\x07\x9b\x7f\u202e\udcff\r"
    assert printable("é ×10¹² „x“\n\t[b]") == "é ×10¹² „x“\n\t[b]"


def test_commands_print_in_no_other_way() -> None:
    found = []
    for path in CLI.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("print", "typer.echo", "Console"):
                found.append(f"{path.name}: {ast.unparse(node.func)}")
    assert found == ["output.py: typer.echo"]


LONG = "x" * 300


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "--out", LONG, "--rounds", "1"),
        ("run", "--resume", LONG),
        ("run", "--data", LONG),
        ("run", "--data", f"{LONG}/y"),
        ("run", "--method", LONG),
        ("run", f"{LONG}.toml"),
        ("run", "--set", f"run.out={LONG}"),
        ("compare", "--out", LONG, "--rounds", "1", "--methods", "fatavg"),
        ("evaluate", LONG),
        ("watch", LONG),
        ("report", LONG),
        ("export", LONG, "--client", "a", "--out", "m.safetensors"),
        ("onboard", LONG, "--data", "digits-mini"),
        ("predict", LONG, "x.png"),
        ("data", "check", LONG),
        ("data", "preview", "digits-mini", "--out", f"{LONG}.png"),
        ("figure", "curves", LONG),
        ("cost", LONG),
        ("plan", LONG),
    ],
    ids=lambda arguments: " ".join(arguments)[:30],
)
def test_names_of_300_characters(arguments: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert command(*arguments) == REFUSED
