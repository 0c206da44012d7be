"""The audit finds what it looks for, and finds nothing in this project."""

from __future__ import annotations

import ast
import subprocess
import sys
from email.message import Message
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import audit  # noqa: E402
from foreign_code import foreign_code, sources  # noqa: E402


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("import pickle", "pickle"),
        ("from pickle import loads", "pickle"),
        ("import cloudpickle as c", "cloudpickle"),
        ("from joblib import load", "joblib"),
        ("import marshal", "marshal"),
        ("import torch\ntorch.load(f)", "torch.load"),
        ("import torch as t\nt.load(f)", "torch.load"),
        ("from torch import load as read\nread(f)", "torch.load"),
        ("import torch\nmap(torch.load, files)", "torch.load"),
        ("import torch\ntorch.load(f, weights_only=True)", "torch.load"),
        ("import torch.export\ntorch.export.load(f)", "torch.export.load"),
        ("import numpy as np\nnp.load(f)", "numpy.load"),
        ("import numpy as np\nnp.load(f, allow_pickle=True)", "numpy.load"),
        ("import numpy as np\nnp.load(f, allow_pickle=0)", "allow_pickle="),
        ("read(f, allow_pickle=trusted)", "allow_pickle="),
        ("eval(x)", "eval"),
        ("run = exec", "exec"),
        ("import builtins\nbuiltins.eval(x)", "builtins.eval"),
        ("__import__(name)", "__import__"),
        ("compile(x, 'f', 'exec')", "compile"),
        ("import os\nos.system(x)", "os.system"),
        ("from os import system\nsystem(x)", "os.system"),
        ("import os\nos.execvp(x, y)", "os.execvp"),
        ("import subprocess\nsubprocess.run(x, shell=True)", "shell="),
        ("run(x, shell=wanted)", "shell="),
        ("import yaml\nyaml.load(f)", "yaml.load"),
        ("import importlib\nimportlib.import_module(name)", "importlib.import_module"),
        ("from importlib import import_module\nimport_module(f'{x}.y')", "importlib.import_module"),
    ],
)
def test_the_walk_finds_what_it_looks_for(code: str, name: str) -> None:
    assert name in [place.partition(": ")[2] for place in foreign_code(ast.parse(code))]


@pytest.mark.parametrize(
    "code",
    [
        "import numpy as np\nnp.load(f, allow_pickle=False)",
        "import safetensors.torch\nsafetensors.torch.load(content)",
        "net.eval()",
        "import re\nre.compile(x)",
        "import json\njson.load(f)",
        "import importlib\nimportlib.import_module('h5py')",
        "import subprocess\nsubprocess.run([x], shell=False)",
        "import yaml\nyaml.safe_load(f)",
        "text = 'eval(x)'",
    ],
)
def test_the_walk_leaves_the_harmless_alone(code: str) -> None:
    assert foreign_code(ast.parse(code)) == []


def test_places_have_their_line() -> None:
    assert foreign_code(ast.parse("x = 1\n\neval(x)")) == ["3: eval"]


def test_this_project_runs_no_foreign_code_but_what_is_deliberate() -> None:
    """Deliberate are four: own code named in a config, our own two tables of names, and a .pt2 with --trust."""
    assert audit.runs_no_foreign_code(ROOT).findings == ()
    assert set(audit.DELIBERATE) == {
        ("src/fedrbn/config/plugins.py", "importlib.import_module"),
        ("src/fedrbn/__init__.py", "importlib.import_module"),
        ("src/fedrbn/builtin/__init__.py", "importlib.import_module"),
        ("src/fedrbn/models/model_file.py", "torch.export.load"),
    }
    assert len(sources(ROOT, audit.FOLDERS)) > 100


def test_planted_code_and_a_stale_exception_are_found(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.py").write_text("eval(x)\nexec(y)\n")
    allowed = {("src/a.py", "exec"): "because", ("src/gone.py", "eval"): "because"}
    assert audit.runs_no_foreign_code(tmp_path, allowed).findings == (
        "src/a.py:1: eval",
        "src/gone.py: eval is allowed but no longer present",
    )


def test_pins() -> None:
    pins = audit.read_pins("# exact\nTorch==2.13.0\nJinja2==3.1.6\n\nmy_pkg==1.0\n")
    assert pins == {"torch": "2.13.0", "jinja2": "3.1.6", "my-pkg": "1.0"}
    installed = {"torch": "2.13.0+cpu", "jinja2": "3.1.5", "other": "1", "pip": "23.0"}
    assert audit.pinned(installed, pins).findings == (
        "jinja2 3.1.5 is installed; constraints.txt has 3.1.6",
        "other 1 is installed but not in constraints.txt",
    )


def test_requirements_without_or_against_their_pin() -> None:
    project = {"project": {"dependencies": ["torch>=2.6", "numpy>=3"], "optional-dependencies": {"x": ["h5py[y]>=3"]}}}
    found = audit.declared(project, {"torch": "2.13.0", "numpy": "2.4.6"})
    assert found.findings == ("numpy>=3 is pinned to 2.4.6", "h5py[y]>=3 has no pin in constraints.txt")


def test_cuda_is_found_by_name_and_by_build() -> None:
    installed = {"torch": "2.13.0+cu126", "nvidia-cublas-cu12": "12.1", "triton": "3.1.0", "numpy": "2.4.6"}
    assert len(audit.without_cuda(installed).findings) == 3
    assert audit.without_cuda({"torch": "2.13.0+cpu", "numpy": "2.4.6"}).findings == ()


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("MIT", True),
        ("Apache-2.0 WITH LLVM-exception AND BSD-3-Clause", True),
        ("GPL-3.0-only OR MIT", True),
        ("GPL-3.0-only AND MIT", False),
        ("GNU Affero General Public License v3", False),
        ("LGPL-2.1", False),
        ("3-Clause BSD License", True),
        ("Proprietary", False),
        ("none stated", False),
    ],
)
def test_licences(text: str, verdict: bool) -> None:
    assert audit.allowed(text) is verdict
    assert (audit.licensed({"x": text}).findings == ()) is verdict


class _Described:
    """A distribution that is only metadata."""

    def __init__(self, *fields: tuple[str, str]) -> None:
        self.metadata = Message()
        for name, value in fields:
            self.metadata[name] = value


def test_where_a_licence_is_stated() -> None:
    classifier = ("Classifier", "License :: OSI Approved :: BSD License")
    assert audit.licence(_Described(("License-Expression", "MIT"), classifier)) == "MIT"  # type: ignore[arg-type]
    assert audit.licence(_Described(classifier, ("License", "see file"))) == "BSD License"  # type: ignore[arg-type]
    kind = ("Classifier", "License :: DFSG approved")
    assert audit.licence(_Described(kind, classifier)) == "BSD License"  # type: ignore[arg-type]
    assert audit.licence(_Described(kind)) == "none stated"  # type: ignore[arg-type]
    assert audit.licence(_Described(("License", "Apache 2.0\nmore"))) == "Apache 2.0"  # type: ignore[arg-type]
    assert audit.licence(_Described()) == "none stated"  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("-----BEGIN RSA " + "PRIVATE KEY-----", "private key"),
        ("-----BEGIN " + "PRIVATE KEY-----", "private key"),
        ("AKIA" + "A1" * 8, "AWS key"),
        ("ghp_" + "a" * 36, "GitHub token"),
        ("hf_" + "a" * 34, "Hugging Face token"),
        ("sk-" + "a" * 40, "OpenAI-style key"),
        ("https://user:" + "word@example.org", "password in an address"),
    ],
)
def test_secrets(text: str, what: str) -> None:
    assert audit.secrets(f"x = '{text}'") == [what]


def test_no_secret_in_plain_text() -> None:
    assert audit.secrets("https://example.org:8080/a@b and -----BEGIN CERTIFICATE-----, task-list, risk-free") == []


def test_only_tracked_files_are_searched(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("ghp_" + "a" * 36)
    subprocess.run(["git", "add", "a.txt"], cwd=tmp_path, check=True)
    assert audit.without_secrets(tmp_path).findings == ("a.txt: GitHub token",)


def test_ruff_finds_a_shell(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.py").write_text("import subprocess\nsubprocess.run('ls', shell=True)\n")
    (finding,) = [text for text in audit.secure_by_ruff(tmp_path).findings if "S602" in text or "S604" in text]
    assert finding.startswith("src/a.py:2:")


def test_the_table_and_its_verdict() -> None:
    text, clean = audit.report([audit.Check("a", "2 things", ()), audit.Check("b", "1 thing", ("wrong",))])
    assert not clean
    assert text.splitlines()[:3] == [
        "a             ok        2 things",
        "b             1 FOUND   1 thing",
        " " * 14 + "- wrong",
    ]
    assert "not looked up" in text
    assert audit.report([audit.Check("a", "", ())])[1]


@pytest.mark.slow
def test_the_audit_of_this_project_is_clean() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "audit.py")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
    assert "FOUND" not in done.stdout
