"""Nothing in the package unpickles, or runs text as code."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import fedrbn

FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__"}
FORBIDDEN_ATTRIBUTES = {("torch", "load"), ("np", "load"), ("numpy", "load"), ("pickle", "loads"), ("pickle", "load")}
FORBIDDEN_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
SOURCES = sorted(Path(fedrbn.__file__).parent.rglob("*.py"))


def unsafe(tree: ast.AST) -> list[str]:
    """The places in a syntax tree that could run foreign code; np.load is allowed with allow_pickle=False only."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
            found += [name for name in names if name.split(".")[0] in FORBIDDEN_MODULES]
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Name) and node.func.id in FORBIDDEN_CALLS:
            found.append(node.func.id)
        if isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name):
            name = (node.func.value.id, node.func.attr)
            safe = any(k.arg == "allow_pickle" and ast.unparse(k.value) == "False" for k in node.keywords)
            if name in FORBIDDEN_ATTRIBUTES and not (name[0] in {"np", "numpy"} and safe):
                found.append(".".join(name))
    return found


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_source_runs_no_foreign_code(path: Path) -> None:
    assert unsafe(ast.parse(path.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "from joblib import load",
        "torch.load(f)",
        "np.load(f)",
        "np.load(f, allow_pickle=True)",
        "eval(x)",
    ],
)
def test_the_walk_finds_what_it_looks_for(code: str) -> None:
    assert unsafe(ast.parse(code))
