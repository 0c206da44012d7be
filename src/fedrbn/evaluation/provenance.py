"""What made a number: versions of the software, the commit of a working copy, and the precision of training."""

from __future__ import annotations

import platform
import shutil
import subprocess
from functools import cache
from importlib.metadata import version
from pathlib import Path

import torch

from fedrbn.config.schema import RunConfig
from fedrbn.hardware import pick_precision

_GIT_SECONDS = 10


def versions() -> dict[str, str]:
    """Versions of what computes; `commit` only where this package runs from a git working copy."""
    found = {name: version(name) for name in ("fedrbn", "torch", "numpy")} | {"python": platform.python_version()}
    made_from = commit(Path(__file__).parents[2])
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


def precision(run: RunConfig, device: torch.device) -> str:
    """The type that convolutions and matrix products of training are computed in."""
    return str(pick_precision(run.precision, device) or torch.float32).removeprefix("torch.")
