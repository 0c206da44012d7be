"""The origin of a result: software versions, the commit of a working copy, and the precision of training."""

from __future__ import annotations

import platform
import shutil
import subprocess
from functools import cache
from importlib.metadata import version
from pathlib import Path

import torch

_GIT_SECONDS = 10
_PROJECT = Path(__file__).parents[3]
"""The folder with `.git` if the package runs from a working copy."""


def versions() -> dict[str, str]:
    """Versions of the software; `commit` only if this package runs from a git working copy."""
    found = {name: version(name) for name in ("fedrbn", "torch", "numpy")} | {"python": platform.python_version()}
    made_from = commit(_PROJECT)
    return found if made_from is None else found | {"commit": made_from}


@cache
def commit(root: Path) -> str | None:
    """The commit of the working copy at `root`, followed by `-dirty` if files were changed; None without one."""
    git = shutil.which("git")
    if git is None or not (root / ".git").exists():
        return None
    try:
        asked = subprocess.run(  # noqa: S603  (no part of it is user input)
            [git, "-C", str(root), "describe", "--always", "--dirty", "--abbrev=10", "--exclude=*"],
            capture_output=True, text=True, check=True, timeout=_GIT_SECONDS,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return asked.stdout.strip() or None


def precision_name(precision: torch.dtype | None) -> str:
    """The name in records of the type that training uses for convolutions and matrix products."""
    return str(precision or torch.float32).removeprefix("torch.")
