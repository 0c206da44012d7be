"""A number says what made it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from fedrbn.evaluation.provenance import commit, versions

GIT = shutil.which("git")
ROOT = Path(__file__).parents[2]


def git(root: Path, *arguments: str) -> str:
    done = subprocess.run([str(GIT), "-C", str(root), *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.skipif(GIT is None or not (ROOT / ".git").exists(), reason="not a git working copy")
def test_a_working_copy_names_its_commit() -> None:
    assert versions()["commit"].removesuffix("-dirty") == git(ROOT, "rev-parse", "--short=10", "HEAD")


@pytest.mark.skipif(GIT is None, reason="git is not installed")
def test_changed_files_are_said_and_no_repository_has_no_commit(tmp_path: Path) -> None:
    assert commit(tmp_path) is None
    root = tmp_path / "project"
    git(tmp_path, "init", "-q", "project")
    (root / "file").write_text("one")
    git(root, "add", "file")
    git(root, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-m", "one")
    head = git(root, "rev-parse", "--short=10", "HEAD")
    assert commit.__wrapped__(root) == head
    (root / "file").write_text("two")
    assert commit.__wrapped__(root) == f"{head}-dirty"
