"""`make audit`: checks of dependencies and code that need no network. Exit code 1 if there are findings.

    python tools/audit.py [--root FOLDER]

Known vulnerabilities are not looked up: that needs an online database, and the output says so.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import Distribution, distributions
from pathlib import Path

from foreign_code import foreign_code, sources
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

FOLDERS = ("src", "benchmarks", "examples", "scripts", "soak", "tools", "flower")
"""Code that users run; tests contain hostile input on purpose."""
DELIBERATE: Mapping[tuple[str, str], str] = {
    ("src/fedrbn/config/plugins.py", "importlib.import_module"): "package.module:object of the user's own config",
    ("src/fedrbn/__init__.py", "importlib.import_module"): "public names, from a table in the same file",
    ("src/fedrbn/builtin/__init__.py", "importlib.import_module"): "built-ins, from the tables in the same folder",
    ("src/fedrbn/models/model_file.py", "torch.export.load"): "a .pt2 that the user says to trust",
}
"""(file, what) that is allowed, and why. A missing entry is also a finding, so that this list stays correct."""
UNPINNED = frozenset({"fedrbn", "pip", "torchattacks"})
"""This package, the installer, and what the Makefile pins: torchattacks is installed without its requirements, because
they would replace torch, and is used only in tests."""
LICENCES = (
    "apache", "mit", "bsd", "0bsd", "mpl-2.0", "mozilla public license 2.0", "psf", "python software foundation", "isc",
    "zlib", "cc0", "bsl-1.0", "public domain",
)  # fmt: skip
"""Prefixes of licence names that are compatible with our Apache-2.0; MPL files are used unchanged."""
CATEGORIES = ("OSI Approved", "DFSG approved")
"""Classifiers that name a kind of licence, not a licence."""
SECRETS: Mapping[str, str] = {
    "private key": r"-----BEGIN (?:[A-Z]+ )?PRIVATE KEY-----",
    "AWS key": r"\bAKIA[0-9A-Z]{16}\b",
    "GitHub token": r"\bgh[pousr]_[A-Za-z0-9]{36}",
    "Hugging Face token": r"\bhf_[A-Za-z0-9]{30,}",
    "Slack token": r"\bxox[abprs]-[A-Za-z0-9-]{10,}",
    "Google key": r"\bAIza[0-9A-Za-z_-]{35}",
    "OpenAI-style key": r"\bsk-[A-Za-z0-9_-]{32,}",
    "password in an address": r"://[^/\s:@'\"{}<>]+:[^/\s:@'\"{}<>]+@",
}


@dataclass(frozen=True)
class Check:
    """One line of the table."""

    what: str
    looked_at: str
    findings: tuple[str, ...]


def consistent_environment() -> Check:
    """pip's own check of installed distributions against their requirements."""
    done = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line and not line.startswith("No broken")]
    known = [line for line in lines if line.split()[0] == "torchattacks"]
    return Check("pip check", f"{len(known)} remarks on torchattacks ignored", _without(lines, known))


def _without(lines: Iterable[str], known: Iterable[str]) -> tuple[str, ...]:
    aside = set(known)
    return tuple(line for line in lines if line not in aside)


def read_pins(text: str) -> dict[str, str]:
    """`name==version` lines as a table."""
    requirements = [Requirement(line) for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return {canonicalize_name(each.name): next(iter(each.specifier)).version for each in requirements}


def pinned(installed: Mapping[str, str], pins: Mapping[str, str]) -> Check:
    """Every installed distribution has its exact version in constraints.txt."""
    findings = []
    for name, version in sorted(installed.items()):
        if name in UNPINNED:
            continue
        if name not in pins:
            findings.append(f"{name} {version} is installed but not in constraints.txt")
        elif Version(version).public != Version(pins[name]).public:
            findings.append(f"{name} {version} is installed; constraints.txt has {pins[name]}")
    return Check("pinned", f"{len(installed)} installed distributions", tuple(findings))


def declared(project: Mapping[str, object], pins: Mapping[str, str]) -> Check:
    """Every requirement of pyproject.toml has a pin that satisfies it."""
    table = project["project"]
    assert isinstance(table, dict)  # noqa: S101  (a pyproject.toml without it does not install)
    lists = [table["dependencies"], *table.get("optional-dependencies", {}).values()]
    requirements = [Requirement(text) for texts in lists for text in texts]
    findings = []
    for each in requirements:
        if each.name == table.get("name"):  # an extra made of others
            continue
        version = pins.get(canonicalize_name(each.name))
        if version is None:
            findings.append(f"{each} has no pin in constraints.txt")
        elif not each.specifier.contains(version, prereleases=True):
            findings.append(f"{each} is pinned to {version}")
    return Check("declared", f"{len(requirements)} requirements of pyproject.toml", tuple(findings))


_CUDA = ("nvidia-", "cuda-", "cupy", "triton")


def without_cuda(installed: Mapping[str, str]) -> Check:
    """Only the CPU build of PyTorch: CUDA's packages are gigabytes that nothing here uses."""
    findings = [
        f"{name} {version}"
        for name, version in sorted(installed.items())
        if name.startswith(_CUDA) or (Version(version).local or "").startswith("cu")
    ]
    return Check("no CUDA", "names and build labels of distributions", tuple(findings))


def licence(distribution: Distribution) -> str:
    """The licence that a distribution states: an expression, else classifiers, else the first words."""
    stated = {
        name: distribution.metadata.get_all(name) or [] for name in ("License-Expression", "Classifier", "License")
    }
    titles = [text.split("::")[-1].strip() for text in stated["Classifier"] if "License ::" in text]
    titles = [title for title in titles if title not in CATEGORIES]
    expressions = stated["License-Expression"] or [" AND ".join(titles)] * bool(titles) or stated["License"]
    return str(next(iter(expressions), "none stated")).strip().splitlines()[0]


def allowed(text: str) -> bool:
    """Whether all licences that apply are on the list; for an OR, one is enough."""
    together = re.split(r"\s+AND\s+", text)
    return all(any(_is_listed(each) for each in re.split(r"\s+OR\s+", part)) for part in together)


def _is_listed(name: str) -> bool:
    plain = name.strip(" ()").lower().removeprefix("the ").removeprefix("3-clause ")
    return plain.startswith(LICENCES)


def licensed(found: Mapping[str, str]) -> Check:
    """Every licence is one that we may use."""
    findings = tuple(f"{name}: {text}" for name, text in sorted(found.items()) if not allowed(text))
    return Check("licences", f"{len(found)} distributions, {len(set(found.values()))} statements", findings)


def secure_by_ruff(root: Path) -> Check:
    """ruff's security rules (S) on the code that users run."""
    folders = [folder for folder in FOLDERS if (root / folder).is_dir()]
    ruff = Path(sys.executable).with_name("ruff")
    done = subprocess.run(  # noqa: S603
        [ruff, "check", "--select", "S", "--output-format", "concise", *folders],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    findings = [line for line in done.stdout.splitlines() if re.match(r"\S+:\d+:\d+:", line)]
    if done.returncode and not findings:
        findings = [f"ruff failed: {(done.stderr or done.stdout).strip()[:200]}"]
    return Check("ruff S", ", ".join(folders), tuple(findings))


def runs_no_foreign_code(root: Path, deliberate: Mapping[tuple[str, str], str] = DELIBERATE) -> Check:
    """No unpickling, torch.load, eval, exec, shell or import by a computed name, except where deliberate."""
    paths = sources(root, FOLDERS)
    findings, seen = [], set()
    for path in paths:
        name = path.relative_to(root).as_posix()
        for place in foreign_code(ast.parse(path.read_text(encoding="utf-8"))):
            what = place.partition(": ")[2]
            if (name, what) in deliberate:
                seen.add((name, what))
            else:
                findings.append(f"{name}:{place}")
    findings += [f"{name}: {what} is allowed but no longer present" for name, what in deliberate.keys() - seen]
    return Check("foreign code", f"syntax trees of {len(paths)} files; {len(seen)} deliberate", tuple(sorted(findings)))


def without_secrets(root: Path) -> Check:
    """No private key and no token in a tracked file."""
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=True)  # noqa: S607
    paths = [root / name for name in listing.stdout.split("\0") if name]
    findings = [
        f"{path.relative_to(root)}: {what}" for path in paths if path.is_file() for what in secrets(_text(path))
    ]
    return Check("secrets", f"{len(paths)} tracked files", tuple(findings))


def secrets(text: str) -> list[str]:
    """The kinds of secrets that a text seems to contain."""
    return [what for what, pattern in SECRETS.items() if re.search(pattern, text)]


def _text(path: Path) -> str:
    return path.read_bytes().decode("utf-8", errors="replace")


def checks(root: Path) -> Iterable[Callable[[], Check]]:
    """All checks."""
    installed: dict[str, str] = {canonicalize_name(each.name): each.version for each in distributions()}
    licences: dict[str, str] = {canonicalize_name(each.name): licence(each) for each in distributions()}
    pins = read_pins((root / "constraints.txt").read_text(encoding="utf-8"))
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    return [
        consistent_environment,
        lambda: pinned(installed, pins),
        lambda: declared(project, pins),
        lambda: without_cuda(installed),
        lambda: licensed(licences),
        lambda: secure_by_ruff(root),
        lambda: runs_no_foreign_code(root),
        lambda: without_secrets(root),
    ]


UNKNOWN = (
    "not looked up: that needs an online database. With a network connection:\n"
    f"{'':24}pipx run pip-audit --no-deps --disable-pip -r constraints.txt"
)


def report(found: Iterable[Check]) -> tuple[str, bool]:
    """The table, and whether nothing was found."""
    lines, clean = [], True
    for check in found:
        clean = clean and not check.findings
        verdict = "ok" if not check.findings else f"{len(check.findings)} FOUND"
        lines.append(f"{check.what:13} {verdict:9} {check.looked_at}")
        lines += [f"{'':13} - {finding}" for finding in check.findings]
    lines.append(f"{'known CVEs':13} {'unknown':9} {UNKNOWN}")
    return "\n".join(lines), clean


def main() -> int:
    """Run all checks and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1])
    parser.add_argument("--licences", action="store_true", help="Also list every distribution with its licence.")
    chosen = parser.parse_args()
    if chosen.licences:
        for each in sorted(distributions(), key=lambda each: canonicalize_name(each.name)):
            print(f"{each.name:28} {each.version:14} {licence(each)}")
    text, clean = report(check() for check in checks(chosen.root))
    print(text)
    return 0 if clean else 1


if __name__ == "__main__":
    sys.exit(main())
