"""Code in documents works: its names exist, its commands are accepted, and what is not set aside is executed.

CONTRIBUTING.md explains the comments `<!-- test: … -->` before a block.
"""

from __future__ import annotations

import ast
import importlib
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

import fedrbn
from fedrbn.cli import app

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"((?:^<!-- test: .*? -->\n)*)^```(\w*)\n(.*?)^```$", re.M | re.S)


@dataclass(frozen=True)
class Block:
    """A fenced block and the comments before it."""

    page: Path
    language: str
    text: str
    comments: tuple[str, ...]

    @property
    def skipped(self) -> bool:
        return any(comment.startswith("skip, ") for comment in self.comments)

    @property
    def file(self) -> str | None:
        return next((comment[6:] for comment in self.comments if comment.startswith("write ")), None)

    @property
    def code(self) -> str:
        text = self.text
        for comment in self.comments:
            old, arrow, new = comment.partition(" => ")
            if arrow:
                assert old in text, f"{self.page.name} has no {old!r} to replace"
                text = text.replace(old, new)
        return text

    def commands(self) -> list[list[str]]:
        """The words of every `fedrbn` command, in lines that begin with $ or, without a language, with fedrbn."""
        if self.language not in ("", "console"):
            return []
        joined = self.code.replace("\\\n", " ")
        prefix = r"^\$ (fedrbn .*)$" if "$ " in joined else r"^(fedrbn .*)$"
        lines = (re.sub(r" >\S+", "", line) for line in re.findall(prefix, joined, re.M))  # without redirection
        return [shlex.split(line, comments=True)[1:] for line in lines]


def comments(said: str) -> tuple[str, ...]:
    """The parts of the comments before a block, which " | " separates."""
    return tuple(part for comment in re.findall(r"<!-- test: (.*?) -->", said) for part in comment.split(" | "))


def blocks(page: Path) -> list[Block]:
    found = BLOCK.findall(page.read_text(encoding="utf-8"))
    return [Block(page, lang, text, comments(said)) for said, lang, text in found]


WITH_PYTHON = [page for page in PAGES if any(block.language == "python" for block in blocks(page))]
WITH_COMMANDS = [page for page in PAGES if any(block.commands() for block in blocks(page))]


def missing_names(code: str) -> list[str]:
    """What a snippet takes from fedrbn that is not there."""
    wrong = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "fedrbn":
            module = importlib.import_module(node.module or "")
            wrong += [f"{node.module}.{alias.name}" for alias in node.names if not hasattr(module, alias.name)]
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "fedrbn":
            wrong += [] if node.attr in dir(fedrbn) else [f"fedrbn.{node.attr}"]
    return wrong


def test_a_wrong_name_would_be_found() -> None:
    assert missing_names("import fedrbn\nfedrbn.export.export_client('run')") == ["fedrbn.export"]
    assert missing_names("from fedrbn.runs.load import laod") == ["fedrbn.runs.load.laod"]
    assert missing_names("import fedrbn\nfedrbn.load('run').client('a')") == []


@pytest.mark.parametrize("page", WITH_PYTHON, ids=lambda page: page.name)
def test_names_in_python_exist(page: Path) -> None:
    wrong = [name for block in blocks(page) if block.language == "python" for name in missing_names(block.code)]
    assert wrong == []


def refusals(words: list[str]) -> str | None:
    """Why the command line would not accept this command; None if it would."""
    command: Any = get_command(app)
    while hasattr(command, "commands"):
        if not words or words[0].startswith("-"):
            return None  # fedrbn --help
        if words[0] not in command.commands:
            return f"no command {words[0]}"
        command, words = command.commands[words[0]], words[1:]
    try:
        command.make_context(command.name, [word for word in words if word != "…"])
    except SystemExit:
        return None
    except Exception as error:  # whatever click raises for a wrong option or a missing argument
        return f"{command.name}: {error}"
    return None


def test_a_wrong_option_would_be_found() -> None:
    assert "--methd" in (refusals(["run", "--methd", "fedrbn"]) or "")
    assert refusals(["trian"]) == "no command trian"
    assert refusals(["run", "--method", "fedrbn"]) is None


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=lambda page: page.name)
def test_commands_are_accepted(page: Path) -> None:
    words = [command for block in blocks(page) for command in block.commands()]
    assert [(shlex.join(each), refusals(each)) for each in words if refusals(each)] == []


def run(command: list[str], folder: Path) -> None:
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=600,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{shlex.join(command)}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"


@pytest.mark.slow
@pytest.mark.parametrize("page", WITH_PYTHON, ids=lambda page: page.name)
def test_the_python_of_a_page_runs(page: Path, tmp_path: Path) -> None:
    """Its Python blocks, in order, as one program."""
    found = [block for block in blocks(page) if not block.skipped]
    write_files(found, tmp_path)
    program = "\n".join(block.code for block in found if block.language == "python" and not block.file)
    if program:
        (tmp_path / "page.py").write_text(program, encoding="utf-8")
        run([sys.executable, "page.py"], tmp_path)


def write_files(found: list[Block], folder: Path) -> None:
    """The blocks that a page asks its reader to save."""
    for block in found:
        if block.file:
            (folder / block.file).write_text(block.code, encoding="utf-8")
