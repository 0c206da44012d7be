"""One thing has one name, and one name means one thing: no two classes of the package are called the same."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import fedrbn

ROOT = Path(fedrbn.__file__).parent


def test_no_two_classes_have_one_name() -> None:
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(str(path.relative_to(ROOT)))
    assert found["Plan"] == ["federated/server.py"]  # a check of the check: classes are seen
    assert {name: places for name, places in found.items() if len(places) > 1} == {}
