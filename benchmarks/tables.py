"""Puts the benchmarks' latest figures into docs/speed.md and docs/scaling.md, between the marks that name the file."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PAGES = ("speed.md", "scaling.md")


def table(content: dict[str, Any]) -> str:
    """Rows with their targets, and where they were measured."""
    lines = ["| figure | reached | target | |", "|---|---|---|---|"]
    for row in content["rows"]:
        sign = "≥" if row["better"] == "more" else "≤"
        target = "" if row["target"] is None else f"{sign} {row['target']:.4g}"
        unit = "×" if row["unit"] == "x" else f" {row['unit']}" if row["unit"] else ""
        lines.append(f"| {row['what']} | {row['figure']:.3g}{unit} | {target} | {row['verdict']} |")
    return "\n".join(lines) + "\n\n" + where(content["machine"])


def shares(content: dict[str, Any]) -> str:
    """The profile."""
    lines = ["| what | share of the time |", "|---|---|"]
    lines += [f"| {name} | {share:.1%} |" for name, share in content["shares"].items()]
    return "\n".join(lines) + "\n\n" + where(content["machine"])


def where(machine: dict[str, Any]) -> str:
    """The machine, and how busy it was."""
    return (
        f"{machine['processor']}, {machine['cores']} cores, torch {machine['torch']}, load {machine['load']:.1f} at "
        "the end (above the number of cores, others were running: ratios of CPU time still hold, those of the clock do "
        "not)."
    )


def filled(page: str, found: dict[str, str]) -> str:
    """The page with each `<!-- name -->…<!-- /name -->` filled."""
    for name, text in found.items():
        page = re.sub(
            rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)",
            lambda m, text=text: m[1] + text + "\n" + m[2],
            page,
            flags=re.S,
        )
    return page


def main() -> None:
    """Fill the pages with what has been measured so far."""
    found = {}
    for name in ("steps", "rounds", "growth", "profiling"):
        path = HERE / f"{name}.json"
        if path.exists():
            content = json.loads(path.read_text(encoding="utf-8"))
            found[name] = shares(content) if name == "profiling" else table(content)
    for name in PAGES:
        path = HERE.parent / "docs" / name
        path.write_text(filled(path.read_text(encoding="utf-8"), found), encoding="utf-8")


if __name__ == "__main__":
    main()
