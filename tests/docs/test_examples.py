from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "says"), [("own_model.py", ("SA ", "logits agree", "of 8 right"))], ids=str)
def test_an_example_runs(name: str, says: tuple[str, ...], tmp_path: Path) -> None:
    """As a user would run it: in a process of its own, warnings being errors."""
    result = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / name), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert all(text in result.stdout for text in says)


def test_every_example_is_tested() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == {"own_model.py"}
