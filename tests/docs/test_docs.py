"""Documents say what the code says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

import fedrbn
from fedrbn.cli.settings import markdown_page

ROOT = Path(__file__).parents[2]


def test_the_page_of_settings_is_up_to_date() -> None:
    page = (ROOT / "docs/configuration.md").read_text(encoding="utf-8")
    assert page == markdown_page(), "write it anew: fedrbn settings --markdown > docs/configuration.md"


def test_every_setting_has_a_meaning() -> None:
    rows = [line for line in markdown_page().splitlines() if line.startswith("| `")]
    assert len(rows) > 30
    assert not [row for row in rows if row.endswith("|  |")]


@pytest.mark.parametrize("page", sorted(ROOT.glob("*.md")) + sorted(ROOT.glob("docs/*.md")), ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    missing = [target for target in targets if "://" not in target and not (page.parent / target).exists()]
    assert not missing


def test_the_page_of_commands_is_up_to_date() -> None:
    page = (ROOT / "docs/commands.md").read_text(encoding="utf-8")
    made = subprocess.run(
        [sys.executable, "-c", "import commands_page; print(commands_page.markdown(), end='')"], cwd=ROOT / "tools",
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert page == made.stdout, "write it anew: python tools/commands_page.py"


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    shown = re.findall(r"^ +- .*: (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.M)
    assert sorted(shown) == sorted(path.name for path in (ROOT / "docs").glob("*.md"))


def test_the_api_page_has_every_public_name_as_it_is_imported() -> None:
    shown = re.findall(r"^::: fedrbn\.(\w+)$", (ROOT / "docs/api.md").read_text(encoding="utf-8"), re.M)
    assert sorted(set(shown) - {"errors"}) == sorted(fedrbn.__all__)


def test_the_readme_has_at_most_150_lines() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


def test_versions_agree() -> None:
    """The package, the Flower app and what its README requires, the citation, and the newest part of the changelog."""
    version = fedrbn.__version__
    app = tomllib.loads((ROOT / "flower/pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert app["version"] == version
    needs = f"`fedrbn`, version {version}, with flwr {metadata.version('flwr')}."
    assert needs in (ROOT / "flower/README.md").read_text(encoding="utf-8")
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {version}\n" in citation
    date = re.search(r"^date-released: (\S+)$", citation, re.M)
    assert date is not None
    assert f"\n## [{version}] - {date[1]}\n" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_flower_app_carries_licence_and_readme(tmp_path: Path) -> None:
    app = shutil.copytree(ROOT / "flower", tmp_path / "flower")
    flwr = Path(sysconfig.get_path("scripts")) / "flwr"
    quiet = {**os.environ, "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
    subprocess.run([str(flwr), "build"], cwd=app, env=quiet, capture_output=True, check=True, timeout=300)
    (made,) = app.glob("*.fab")
    with zipfile.ZipFile(made) as archive:
        assert {"LICENSE", "README.md", "pyproject.toml"} <= set(archive.namelist())
    assert (ROOT / "flower/LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


def test_the_architecture_page_names_files_that_exist() -> None:
    page, package = (ROOT / "docs/architecture.md").read_text(encoding="utf-8"), ROOT / "src/fedrbn"
    files = set(re.findall(r"`([\w/]+\.(?:py|toml))(?::\w+)?`", page))
    known = [
        str(path.relative_to(ROOT))
        for folder in (package, ROOT / "tools", ROOT / "tests")
        for path in folder.rglob("*.*")
    ]
    # inside the steps of a walk a file is named without the folder before it, such as `executors/lockstep.py`
    missing = [name for name in files if not any(path.endswith(f"/{name}") or path == name for path in known)]
    assert len(files) > 50
    assert missing == []
