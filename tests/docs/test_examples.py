"""Every example runs as a user would run it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
SAYS = {
    "compare_and_plot.py": ("fatavg", "accuracies.png"),
    "flower_node_data.py": ("domain scans", "400 images to train, 100 to validate, 200 to test"),
    "new_attack.py": ("pgd-7:eps=8/255: robust accuracy", "new_attack:random_corners: robust accuracy"),
    "new_method.py": ("new_method:noisy_fatbn", "fatbn"),
    "own_folder.py": ("indoor: SA", "outdoor: SA"),
    "own_network.py": ("SA ", "logits agree", "of 8 right"),
}
NOTEBOOKS = {"data_to_report.ipynb": "wrote report.html"}


def python(program: Path, folder: Path, *words: str) -> str:
    """What a program prints, in a process of its own, warnings being errors."""
    command = [sys.executable, "-W", "error", str(program), *words]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.slow
@pytest.mark.parametrize(("name", "says"), SAYS.items(), ids=SAYS)
def test_an_example_runs(name: str, says: tuple[str, ...], tmp_path: Path) -> None:
    printed = python(EXAMPLES / name, tmp_path, str(tmp_path))
    assert [text for text in says if text not in printed] == []


@pytest.mark.slow
@pytest.mark.parametrize(("name", "says"), NOTEBOOKS.items(), ids=NOTEBOOKS)
def test_a_notebook_runs(name: str, says: str, tmp_path: Path) -> None:
    """Its cells in order; what a cell ends with must show itself, as it would in a notebook."""
    cells = json.loads((EXAMPLES / name).read_text(encoding="utf-8"))["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    shown = [
        f"{source}._repr_html_()" if source.isidentifier() else source
        for source in "\n".join(sources).replace("model.card", "").splitlines()
    ]
    (tmp_path / "notebook.py").write_text("\n".join(shown), encoding="utf-8")
    assert says in python(tmp_path / "notebook.py", tmp_path)


def test_every_example_is_tested() -> None:
    assert {path.name for path in EXAMPLES.iterdir() if path.is_file()} == {*SAYS, *NOTEBOOKS}


def test_a_new_method_takes_thirty_lines() -> None:
    """Without imports and the settings of the comparison."""
    text = (EXAMPLES / "new_method.py").read_text(encoding="utf-8")
    method = text[text.index("@dataclass") : text.index("SETTINGS")]
    assert len([line for line in method.splitlines() if line.strip()]) <= 30
