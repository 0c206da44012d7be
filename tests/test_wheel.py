"""A wheel carries all that its commands need: installed alone, without the extras, it runs them in an empty folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
import zipfile
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
SMALL = {"model.width": 0.0625, "federation.test_samples": 4, "federation.fraction": 0.05,
         "federation.users_per_domain": 2, "federation.at": 0.5, "attack.steps": 1,
         "data.domains": '["plain"]'}  # fmt: skip
TINY = [
    *("--workers", "1", "--rounds", "1", "-q"),
    *(word for name, value in SMALL.items() for word in ("--set", f"{name}={value}")),
]
FLEET = """
deadline = 30
[[device]]
id = "server"
domain = "plain"
samples = 500
macs_per_second = 2e10
memory = "8 GB"
bandwidth = "1 Gbit/s"
"""


def needed(name: str, extras: frozenset[str] = frozenset()) -> dict[str, Distribution]:
    """A distribution and all that it requires, by name; nothing that only an extra asks for."""
    found: dict[str, Distribution] = {}
    todo = [(name, extras)]
    while todo:
        name, extras = todo.pop()
        if canonicalize_name(name) in found and not extras:
            continue
        here = found[canonicalize_name(name)] = distribution(name)
        for text in here.requires or ():
            one = Requirement(text)
            if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in extras or {""}):
                todo.append((one.name, frozenset(one.extras)))
    return found


def link(found: Distribution, site: Path) -> None:
    """Make a distribution of this environment available in another one."""
    for top in sorted({file.parts[0] for file in found.files or () if ".." not in file.parts}):
        if top != "__pycache__" and not (site / top).exists():
            (site / top).symlink_to(found.locate_file(top))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy of what a source archive has."""
    out = tmp_path_factory.mktemp("wheel")
    source = out / "source"
    files = subprocess.run(["git", "ls-files", "-z", "pyproject.toml", "README.md", "LICENSE", "src"], cwd=ROOT,
                           capture_output=True, check=True).stdout.decode().split("\0")  # fmt: skip
    for name in filter(None, files):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes((ROOT / name).read_bytes())
    build = [
        sys.executable,
        "-c",
        "import sys, setuptools.build_meta as b; b.build_wheel(sys.argv[1])",
        str(out),
    ]
    subprocess.run(build, cwd=source, capture_output=True, check=True)
    (made,) = out.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Python of an environment with the wheel and the core's dependencies, which are linked instead of copied."""
    folder = tmp_path_factory.mktemp("clean")
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    names = [text for text in distribution("fedrbn").requires or () if "extra ==" not in text]
    for text in names:
        one = Requirement(text)
        for found in needed(one.name, frozenset(one.extras)).values():
            link(found, site)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    return folder / "bin" / "python"


def fedrbn(python: Path, folder: Path, *words: str, code: int = 0) -> str:
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "FEDRBN_DATA")}
    done = subprocess.run(
        [str(python), "-c", "from fedrbn.cli import main; main()", *words], cwd=folder,
        env={**kept, "PYTHONWARNINGS": "error", "MPLCONFIGDIR": str(folder / "mpl")}, capture_output=True, text=True,
        timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout[-1500:]}\n{done.stderr[-3000:]}"
    return done.stdout + done.stderr


@pytest.mark.slow
def test_the_wheel_has_all_of_the_package(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if name.startswith("fedrbn/")}
    tracked = subprocess.run(["git", "ls-files", "src/fedrbn"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert held == {name.removeprefix("src/") for name in tracked.stdout.split()}


@pytest.mark.slow
def test_commands_work_where_nothing_but_the_wheel_is(installed: Path, tmp_path: Path) -> None:
    assert "report.html" in fedrbn(installed, tmp_path, "demo", *[word for word in TINY if word != "-q"])
    assert (tmp_path / "runs/demo/report.html").stat().st_size > 10_000
    fedrbn(installed, tmp_path, "run", *TINY, "--out", "runs/one")
    fedrbn(installed, tmp_path, "compare", *TINY, "--methods", "fatbn")
    fedrbn(installed, tmp_path, "report", "runs/one", "-o", "one.html", "--no-checks")
    fedrbn(installed, tmp_path, "figure", "domain-wise", "--run", "runs/one", "-o", "bars")
    assert (tmp_path / "bars.svg").exists()
    assert "MMACs" in fedrbn(installed, tmp_path, "cost", "demo", "--set", "model.width=0.0625")
    (tmp_path / "fleet.toml").write_text(FLEET)
    assert "server" in fedrbn(installed, tmp_path, "plan", "fleet.toml")
    assert "benchmark" in fedrbn(installed, tmp_path, "reproduce", "--list")
    made = fedrbn(installed, tmp_path, "reproduce", "single-domain", "--scale", "smoke", "--data", "digits-mini",
                  "--only", "FATBN/MNIST", "--workers", "1")  # fmt: skip
    assert "wrote results/single-domain-smoke-digits-mini/table.md" in made


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "extra"),
    [
        (("deploy", "init", "site", "--nodes", "2"), "flower"),
        (("export", "runs/x", "--client", "plain-0", "-o", "x.onnx"), "export"),
        (("evaluate", "runs/x", "--attacks", "aa", "--workers", "1"), "attacks"),
        (("run", *TINY, "--set", "method.lam=0.4", "--track", "tensorboard"), "track"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_missing_extra_is_named(
    installed: Path, words: tuple[str, ...], extra: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.getbasetemp() / "extras"
    if not folder.exists():
        folder.mkdir()
        fedrbn(installed, folder, "run", *TINY, "--out", "runs/x")
    said = fedrbn(installed, folder, *words, code=2)
    assert re.search(rf"pip install '(fedrbn|\.)\[{extra}\]'", said), said
