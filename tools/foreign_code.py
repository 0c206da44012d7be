"""Finds code in syntax trees that could execute data: unpickling, eval, shells, imports by a computed name.

    foreign_code(ast.parse(text))  ->  ["3: torch.load", "7: shell="]

Names are followed through imports (`from torch import load as read`), but not through assignments: this finds mistakes,
not deliberately hidden code.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

MODULES = frozenset(
    {
        "pickle",
        "cPickle",
        "_pickle",
        "dill",
        "cloudpickle",
        "joblib",
        "jsonpickle",
        "shelve",
        "marshal",
        "runpy",
        "code",
    }
)
"""Modules that exist to unpickle or to run code."""
BUILTINS = frozenset({"eval", "exec", "compile", "__import__", "execfile"})
NAMES = frozenset(
    {
        "torch.load", "torch.jit.load", "torch.package.PackageImporter", "torch.hub.load", "torch.export.load",
        "numpy.load", "numpy.lib.format.read_array", "numpy.fromregex", "pandas.read_pickle",
        "os.system", "os.popen", "pty.spawn", "subprocess.getoutput", "subprocess.getstatusoutput",
        "yaml.load", "yaml.load_all", "yaml.unsafe_load", "yaml.full_load",
        "importlib.import_module", "importlib.util.spec_from_file_location",
    }
)  # fmt: skip
"""Names that are findings wherever they occur, called or not."""
_PROGRAMS = ("os.exec", "os.spawn", "os.posix_spawn")
_UNPICKLES_UNLESS = "allow_pickle"
"""numpy's readers are allowed with an explicit allow_pickle=False."""


def foreign_code(tree: ast.AST) -> list[str]:
    """The places of a syntax tree that could run foreign code, as `line: name`."""
    imported = dict(_imported(tree))
    safe = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call) and _is_safe(node, imported)}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            found += [(node.lineno, name) for name in _modules(node) if name.split(".")[0] in MODULES]
        elif isinstance(node, ast.Call):
            found += [(node.lineno, f"{word.arg}=") for word in node.keywords if _is_unsafe(word)]
        elif isinstance(node, ast.Name | ast.Attribute) and id(node) not in safe:
            name = _dotted(node, imported)
            if name in NAMES or name.removeprefix("builtins.") in BUILTINS or name.startswith(_PROGRAMS):
                found.append((node.lineno, name))
    return [f"{line}: {name}" for line, name in sorted(found)]


def _imported(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """What the names bound by imports refer to: `import numpy as np` gives np, numpy."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                name = alias.name if alias.asname else alias.name.split(".")[0]
                yield alias.asname or name, name
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def _modules(node: ast.Import | ast.ImportFrom) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module] if node.module and not node.level else []


def _dotted(node: ast.expr, imported: dict[str, str]) -> str:
    """A name as in its module's documentation; empty for anything except names and dots."""
    if isinstance(node, ast.Name):
        return imported.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        before = _dotted(node.value, imported)
        return f"{before}.{node.attr}" if before else ""
    return ""


def _is_safe(call: ast.Call, imported: dict[str, str]) -> bool:
    name = _dotted(call.func, imported)
    if name == "importlib.import_module":
        return bool(call.args) and isinstance(call.args[0], ast.Constant)
    stated = [word for word in call.keywords if word.arg == _UNPICKLES_UNLESS]
    return name.startswith("numpy.") and bool(stated) and not any(_is_unsafe(word) for word in stated)


def _is_unsafe(word: ast.keyword) -> bool:
    """A switch that is not explicitly off."""
    off = isinstance(word.value, ast.Constant) and word.value.value is False
    return word.arg in ("shell", _UNPICKLES_UNLESS) and not off


def sources(root: Path, folders: tuple[str, ...]) -> list[Path]:
    """The Python files in these folders of the project."""
    return sorted(path for folder in folders for path in (root / folder).rglob("*.py"))
