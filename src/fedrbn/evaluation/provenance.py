"""What made a number: versions of the software, the commit of a working copy, and the precision of training."""

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
"""Where `.git` is if the package runs from a working copy: this file is src/fedrbn/evaluation/provenance.py in it."""


def versions() -> dict[str, str]:
    """Versions of what computes; `commit` only where this package runs from a git working copy."""
    found = {name: version(name) for name in ("fedrbn", "torch", "numpy")} | {"python": platform.python_version()}
    made_from = commit(_PROJECT)
    return found if made_from is None else found | {"commit": made_from}


@cache
def commit(root: Path) -> str | None:
    """The commit of the working copy at `root`, with `-dirty` after it if files were changed; None without one."""
    git = shutil.which("git")
    if git is None or not (root / ".git").exists():
        return None
    try:
        asked = subprocess.run(  # noqa: S603  (nothing of it comes from outside)
            [git, "-C", str(root), "describe", "--always", "--dirty", "--abbrev=10", "--exclude=*"],
            capture_output=True, text=True, check=True, timeout=_GIT_SECONDS,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return asked.stdout.strip() or None


def precision_name(precision: torch.dtype | None) -> str:
    """How records name the type that convolutions and matrix products of training are computed in."""
    return str(precision or torch.float32).removeprefix("torch.")
