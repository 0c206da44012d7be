"""The layers of the package: a module imports from its own folder and from those before it in the list only."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import fedrbn

ROOT = Path(fedrbn.__file__).parent
LAYERS = (
    "",  # the package root: nouns and ground floor
    "builtin",
    "config",
    "nets",
    "attacks",
    "data",
    "federated",
    "evaluation",
    "cost",
    "fleet",
    "runs",
    "models",
    "flower",
    "deploy",
    "reproduce",
    "figures",
    "report",
    "cli",
)
"""From the ground up, as in docs/architecture.md."""
MODULES = {
    ".".join(("fedrbn", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in sorted(ROOT.rglob("*.py"))
}


def layer(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 2 or (MODULES[module].name == "__init__.py" and len(parts) > 1) else ""


def imported(path: Path) -> Iterator[str]:
    """Modules of this package that a file imports, wherever in the file: in functions and for type checking too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names if name.name in MODULES)
        elif isinstance(node, ast.ImportFrom) and node.module in MODULES:
            for name in node.names:
                inner = f"{node.module}.{name.name}"
                yield inner if inner in MODULES else node.module


IMPORTS = {module: frozenset(imported(path)) - {module} for module, path in MODULES.items() if module != "fedrbn"}
"""Without `fedrbn` itself, whose names are those of everything below it, imported when they are first used."""


def test_every_folder_has_its_place() -> None:
    assert {layer(module) for module in MODULES} == set(LAYERS)


def test_the_package_root_holds_six_modules() -> None:
    assert [path.name for path in sorted(ROOT.glob("*.py"))] == [
        "__init__.py", "errors.py", "files.py", "hardware.py", "randomness.py", "types.py",
    ]  # fmt: skip


@pytest.mark.parametrize("module", IMPORTS)
def test_nothing_is_imported_from_a_layer_above(module: str) -> None:
    height = LAYERS.index(layer(module))
    assert [found for found in IMPORTS[module] if LAYERS.index(layer(found)) > height] == []


def test_modules_do_not_import_each_other_in_a_circle() -> None:
    done: set[str] = set()

    def visit(module: str, way: tuple[str, ...]) -> None:
        assert module not in way, " -> ".join([*way[way.index(module) :], module])
        if module not in done:
            for found in sorted(IMPORTS.get(module, ())):
                visit(found, (*way, module))
            done.add(module)

    for module in IMPORTS:
        visit(module, ())


def test_the_test_would_notice(tmp_path: Path) -> None:
    """Imports in functions and behind TYPE_CHECKING count."""
    file = tmp_path / "lower.py"
    file.write_text(
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    from fedrbn.runs.train import run\n"
        "def late():\n    import fedrbn.cli\n    from fedrbn.report import page\n"
    )
    assert sorted(imported(file)) == ["fedrbn.cli", "fedrbn.report.page", "fedrbn.runs.train"]
