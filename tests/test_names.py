"""One thing has one name, and one name means one thing: no two classes or type aliases are called the same."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

import fedrbn

ROOT = Path(fedrbn.__file__).parent


def _type_names(node: ast.stmt) -> list[str]:
    """The class or the type alias that a statement of a module defines: aliases are written as classes are."""
    if isinstance(node, ast.ClassDef):
        names = [node.name]
    elif isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        names = [target.id for target in targets if isinstance(target, ast.Name)]
    else:
        names = []
    return [name for name in names if re.fullmatch("[A-Z][A-Za-z]*[a-z][A-Za-z]*", name)]


def test_no_two_classes_or_type_aliases_have_one_name() -> None:
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            for name in _type_names(node):
                found[name].append(str(path.relative_to(ROOT)))
    assert found["Plan"] == ["federated/server.py"]  # a check of the check: classes are seen
    assert found["Objective"] == ["federated/objectives.py"]  # and aliases
    assert {name: places for name, places in found.items() if len(places) > 1} == {}
