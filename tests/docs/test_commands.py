"""Commands in documents run, and print what the documents show.

All commands of a page run in one shell, in their order, in a folder that holds what a reader of the page has. Numbers
differ from run to run and from machine to machine, so the text around them is compared; "…" stands for anything.
CONTRIBUTING.md explains the comments `<!-- test: … -->` before a block.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from PIL import Image, ImageDraw

from data import published
from docs.test_snippets import PAGES, ROOT, Block, blocks, write_files

NUMBER = re.compile(r"\d[\d,.]*(?:e[-+]?\d+)?")
DURATION = re.compile(r"# (?:ms|s|min|h|days?)\b")
FRAME = re.compile(r"[\u2500-\u257f]+")
NETWORK = """
from torch import nn

def network(num_classes, in_channels):
    return nn.Sequential(
        nn.Conv2d(in_channels, 8, 3, stride=4), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(8, num_classes),
    )
"""


@dataclass(frozen=True)
class Step:
    """A command after `$ `, and the output that a page shows below it."""

    command: str
    output: str
    masked: tuple[str, ...] = ()
    exactly: bool = False
    status: int = 0

    def fault(self, status: int, printed: str) -> str | None:
        """What is wrong with what the command did; None if the page shows it as it is."""
        if status != self.status:
            return f"exit code {status}, expected {self.status}"
        if not self.output.strip():
            return None
        shown, found = self._comparable(self.output), self._comparable(printed)
        if "…" not in shown:
            return None if shown == found else f"the page shows\n{shown}\nand the command prints\n{found}"
        at = 0
        for part in filter(None, (part.strip() for part in shown.split("…"))):
            at = found.find(part, at)
            if at < 0:
                return f"the page shows\n{part}\nand the command prints\n{found}"
            at += len(part)
        return None

    def _comparable(self, text: str) -> str:
        """The words, whatever the width of the terminal and the numbers."""
        if self.exactly:
            return "\n".join(line.rstrip() for line in text.strip().splitlines())
        for name in self.masked:
            text = re.sub(name, "*", text)
        return DURATION.sub("# s", NUMBER.sub("#", " ".join(FRAME.sub(" ", text).split())))


def steps(block: Block) -> list[Step]:
    """The commands of a `console` block."""
    found: list[tuple[list[str], list[str]]] = []
    lines = iter(block.code.splitlines())
    for line in lines:
        if not line.startswith("$ "):
            if found:
                found[-1][1].append(line)
            continue
        command, end = [line[2:]], re.search(r"<<(\w+)", line)
        while command[-1].endswith("\\") or (end and command[-1] != end[1]):
            command.append(next(lines))
        found.append((command, []))
    masked = tuple(comment[5:] for comment in block.comments if comment.startswith("mask "))
    last = next((int(comment[7:]) for comment in block.comments if comment.startswith("status ")), 0)
    made = []
    for i, (command, output) in enumerate(found):
        failing = 2 if any(line.startswith("error: ") for line in output) else 0
        status = last or failing if i == len(found) - 1 else failing
        made.append(Step("\n".join(command), "\n".join(output), masked, "run exactly" in block.comments, status))
    return made


def runs(block: Block) -> bool:
    return block.language == "console" and bool({"run", "run exactly"} & set(block.comments))


WITH_STEPS = [page for page in PAGES if any(runs(block) for block in blocks(page))]


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("SA 80.0%, 3 min left", "SA 9.1%, 12 s left", True),
        ("│ pen │ 70.0 │", "┃ pen ┃ 9.0 ┃", True),
        ("size 3.5 MB", "memory 3.5 MB", False),
        ("one", "one\ntwo", False),
        ("one\n…\nthree", "one\ntwo\nthree", True),
        ("one\n…\nfour", "one\ntwo\nthree", False),
        ("three\n…\none", "one\ntwo\nthree", False),
    ],
)
def test_other_words_would_be_found(shown: str, printed: str, same: bool) -> None:
    assert (Step("", shown).fault(0, printed) is None) == same


def test_an_exact_output_must_have_its_numbers() -> None:
    assert Step("", "cost 1.5", exactly=True).fault(0, "cost 1.5\n") is None
    assert Step("", "cost 1.5", exactly=True).fault(0, "cost 1.6\n") is not None


def test_an_exit_code_is_checked() -> None:
    assert Step("", "").fault(1, "") == "exit code 1, expected 0"
    (step,) = steps(Block(ROOT, "console", "$ fedrbn run\nerror: got nothing\n", ("run",)))
    assert step.status == 2


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_block_of_commands_runs_or_names_the_test_that_runs_them(page: Path) -> None:
    for block in (block for block in blocks(page) if block.language == "console" and not runs(block)):
        reason = next((comment for comment in block.comments if comment.startswith("skip, ")), "")
        named = re.findall(r"tests/[\w/]+\.py", reason)
        assert named, f"{page.name} has commands that no test runs:\n{block.text}"
        assert all((ROOT / name).exists() for name in named), reason


def photographs(root: Path, domains: tuple[str, ...], classes: tuple[str, ...], number: int = 20) -> None:
    """Pictures of 64 x 48 pixels, each another one; the classes differ in shape, the domains in brightness."""
    for i, domain in enumerate(domains):
        for j, name in enumerate(classes):
            (root / domain / name).mkdir(parents=True)
            for k in range(number):
                picture = Image.new("RGB", (64, 48), (90 * i + 2 * k, 60, 40 * j + k))
                draw = ImageDraw.Draw(picture)
                shape = draw.ellipse if j == 0 else draw.rectangle
                shape((4 + k, 4 + i, 30 + k, 40 - (k % 7)), fill=(220 - 3 * k, 200, 4 * k))
                picture.save(root / domain / name / f"{k:02}.jpg", quality=95)


def readme(folder: Path) -> None:
    photographs(folder / "my-photos", ("studio", "street"), ("cup", "lamp"))
    (folder / "downloads").mkdir()
    published.mnist(folder / "downloads")
    (folder / "photo.jpg").write_bytes((folder / "my-photos/studio/cup/00.jpg").read_bytes())
    (folder / "my_code.py").write_text(NETWORK)


def data_page(folder: Path) -> None:
    photographs(folder / "photos", ("day", "night"), ("circle", "square"), 60)
    (folder / "downloads").mkdir()
    published.mnist(folder / "downloads")
    circles = folder / "photos/day/circle"
    for name in ("60", "61", "62"):
        (circles / f"{name}.jpg").write_bytes((circles / "00.jpg").read_bytes())


def deploy_page(folder: Path) -> None:
    for name in ("0-is-0", "1-is-2", "2-is-3"):
        Image.new("RGB", (28, 28), "white").save(folder / f"{name}.png")


def budgets_page(folder: Path) -> None:
    (folder / "here.toml").write_text("[model]\nwidth = 0.25\n")
    (folder / "experiment.toml").write_text(
        '[model]\nwidth = 0.25\n[data]\ndomains = ["plain", "street"]\n'
        "[federation]\nusers_per_domain = 2\nfraction = 0.1\ntest_samples = 8\n[train]\nrounds = 2\n"
    )


def extending_page(folder: Path) -> None:
    photographs(folder / "photos", ("day", "night"), ("circle", "square"), 40)


GIVEN: dict[str, Callable[[Path], None]] = {
    "README.md": readme,
    "budgets.md": budgets_page,
    "data.md": data_page,
    "deploy.md": deploy_page,
    "extending.md": extending_page,
}
"""What a reader of a page has before its first command."""
NEED_DATA = {"README.md", "tutorial.md"}


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("page", WITH_STEPS, ids=lambda page: page.name)
def test_the_commands_of_a_page_print_what_it_shows(page: Path, tmp_path: Path) -> None:
    if page.name in NEED_DATA and "FEDRBN_DATA" not in os.environ:
        pytest.skip("needs the real data: set FEDRBN_DATA")
    found = blocks(page)
    folder, results = tmp_path / "reader", tmp_path / "results"
    folder.mkdir()
    results.mkdir()
    GIVEN.get(page.name, lambda _: None)(folder)
    write_files([block for block in found if not block.skipped], folder)
    todo = [step for block in found if runs(block) for step in steps(block)]
    bash(todo, folder, results)
    for i, step in enumerate(todo):
        printed = (results / f"{i}.txt").read_text(encoding="utf-8")
        fault = step.fault(int((results / f"{i}.status").read_text()), printed)
        assert fault is None, f"$ {step.command}\n{fault}\n\n{printed[-4000:]}"


def bash(todo: list[Step], folder: Path, results: Path) -> None:
    """Run the commands in one shell; what each prints and its exit code are in `results`."""
    (results / "bin").mkdir()
    command = results / "bin/fedrbn"
    command.write_text(f"#!/bin/sh\nexec {sys.executable} -c 'from fedrbn.cli import main; main()' \"$@\"\n")
    command.chmod(0o755)
    script = "".join(
        f"{{ {step.command}\n}} >{results}/{i}.txt 2>&1 </dev/null; echo $? >{results}/{i}.status\n"
        for i, step in enumerate(todo)
    )
    paths = {
        "PATH": os.pathsep.join([str(results / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")])),
    }
    subprocess.run(["bash"], input=script, cwd=folder, env={**os.environ, **paths}, text=True, check=True)
